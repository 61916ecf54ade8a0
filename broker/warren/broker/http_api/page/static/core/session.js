/** The login: credentials are kept in sessionStorage, until the tab is closed, and sent in the header Authorization only. */
import { Store } from "./store.js";

const KEY = "warren.authorization";
const INCLUDED = {
  management: ["management", "policymaker", "monitoring", "administrator"],
  policymaker: ["policymaker", "administrator"],
  monitoring: ["monitoring", "administrator"],
  administrator: ["administrator"],
};

/** `user` is null without a login; `message` says why. */
export const session = new Store({ user: null, message: "" });

export function authorization() {
  return sessionStorage.getItem(KEY);
}

export function remember(name, password) {
  const bytes = new TextEncoder().encode(`${name}:${password}`);
  sessionStorage.setItem(KEY, "Basic " + btoa(String.fromCharCode(...bytes)));
}

export function logOut(message = "") {
  sessionStorage.removeItem(KEY);
  session.set({ user: null, message });
}

/** Returns whether the tags of the user include a role. */
export function hasRole(role) {
  const tags = session.value.user?.tags || [];
  return !role || INCLUDED[role].some((tag) => tags.includes(tag));
}
