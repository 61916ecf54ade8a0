/** Addresses within the page: #/queues/VHOST/NAME?page=2, of the same form as those of RabbitMQ's page. */
import { Store, useStore } from "./store.js";

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function parse(hash) {
  const [where, asked = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  return { parts: where.split("/").filter(Boolean).map(decoded), query: Object.fromEntries(new URLSearchParams(asked)), where };
}

export const route = new Store(parse(location.hash));
addEventListener("hashchange", () => route.set(parse(location.hash)));
export const useRoute = () => useStore(route);

/** Makes an address of a template, whose values become parts of the path: link`queues/${vhost}/${name}`. */
export function link(strings, ...values) {
  const encode = (value) => encodeURIComponent(String(value).toWellFormed ? String(value).toWellFormed() : String(value));
  return "#/" + strings.reduce((whole, text, index) => whole + encode(values[index - 1]) + text);
}

export function navigate(address) {
  location.hash = address;
}

/** Changes parameters of the present address, without a step of the history. */
export function setQuery(changes) {
  const { where, query } = route.value;
  const wanted = Object.entries({ ...query, ...changes }).filter(([, value]) => value !== undefined && value !== "" && value !== false);
  const asked = new URLSearchParams(wanted).toString();
  const hash = `#/${where}${asked && "?" + asked}`;
  history.replaceState(null, "", hash);
  route.set(parse(hash));
}

/** Returns the values of a pattern such as queues/:vhost/:name, or null if the parts do not fit. */
export function match(pattern, parts) {
  const wanted = pattern.split("/").filter(Boolean);
  if (wanted.length !== parts.length) return null;
  const found = {};
  for (const [index, each] of wanted.entries()) {
    if (each.startsWith(":")) found[each.slice(1)] = parts[index];
    else if (each !== parts[index]) return null;
  }
  return found;
}
