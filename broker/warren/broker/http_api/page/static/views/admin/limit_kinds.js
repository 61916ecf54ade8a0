/** Limits of users and of virtual hosts. */

export const USER_LIMITS = [["max-connections", "Connections"], ["max-channels", "Channels"]];
export const VHOST_LIMITS = [["max-connections", "Connections"], ["max-queues", "Queues"]];

/** Returns limits as text, such as "at most 5 connections". */
export function limitsText(limits, kinds) {
  const found = kinds.filter(([name]) => limits?.[name] !== undefined).map(([name, title]) => `at most ${limits[name]} ${title.toLowerCase()}`);
  return found.join(", ") || "none";
}
