/** Client of the HTTP API. */
import { authorization, logOut } from "./session.js";

/** Refusal of a request: `status` is that of HTTP, 0 if the broker did not answer; `message` is for people. */
export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

function part(value) {
  const text = String(value);
  // A browser takes these out of a path, even when they are encoded, and would ask for something else.
  if (text === "." || text === ".." || text === "")
    throw new ApiError(0, `"${text}" cannot be a name in a path of HTTP; use warren ctl for it`);
  return encodeURIComponent(text.toWellFormed ? text.toWellFormed() : text);
}

/** Makes a path of a template, whose values become parts of the path: path`queues/${vhost}/${name}`. */
export function path(strings, ...values) {
  return strings.reduce((whole, text, index) => whole + part(values[index - 1]) + text);
}

/** Name of an exchange in paths: the default exchange has none of its own. */
export const exchangePart = (name) => name || "amq.default";

function reasonOf(found, status) {
  const reason = found && typeof found === "object" ? found.reason ?? found.error : "";
  return (typeof reason === "string" ? reason : JSON.stringify(reason)) || `status ${status}`;
}

function explain(status, reason) {
  if (status === 401 && /^Not .* user$/.test(reason)) return `Your user lacks a tag for this (${reason.slice(4, -5)}).`;
  if (status === 401 || status === 403) return `You may not do this: ${reason}`;
  if (status === 404) return reason === "Not Found" ? "There is no such object, or you may not see it." : `Not found: ${reason}`;
  return `Refused (${status}): ${reason}`;
}

/**
 * Asks the API. `body` is sent as JSON; `content` is text that is JSON already. `asText` returns the answer as it came, because
 * numbers above 2^53 would change when they are parsed.
 */
export async function request(method, where, { query = {}, body, content, asText = false, signal, headers = {} } = {}) {
  const asked = new URLSearchParams(
    Object.entries(query).filter(([, value]) => value !== undefined && value !== "" && value !== false),
  ).toString();
  const sent = content ?? (body === undefined ? undefined : JSON.stringify(body));
  let response;
  try {
    response = await fetch(`api/${where}${asked && "?" + asked}`, {
      method,
      signal,
      body: sent,
      headers: { Authorization: authorization() || "", ...(sent === undefined ? {} : { "Content-Type": "application/json" }), ...headers },
      // No cookies, and no dialog of the browser for a name and a password.
      credentials: "omit",
      cache: "no-store",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The broker does not answer.");
  }
  const text = await response.text();
  if (response.ok && asText) return text;
  let found = null;
  try {
    found = text ? JSON.parse(text) : null;
  } catch {
    throw new ApiError(response.status, "The answer is not JSON: something between this page and the broker changed it.");
  }
  if (response.ok) return found;
  const reason = reasonOf(found, response.status);
  // RabbitMQ's API answers 401 to a failed login, not_authorized, and to a missing permission, not_authorised.
  if (response.status === 401 && found?.error !== "not_authorised" && where !== "whoami")
    logOut("The broker no longer accepts your name and password. Log in again.");
  throw new ApiError(response.status, explain(response.status, reason));
}

export const api = {
  get: (where, options) => request("GET", where, options),
  put: (where, body = {}) => request("PUT", where, { body }),
  post: (where, body = {}) => request("POST", where, { body }),
  delete: (where, options) => request("DELETE", where, options),
};
