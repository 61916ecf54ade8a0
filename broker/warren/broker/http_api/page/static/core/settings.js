/** Choices of the person, kept in the browser: seconds between two updates, colours, range of charts, columns, rows of a page. */
import { Store } from "./store.js";

const KEY = "warren.settings";
const DEFAULTS = { interval: 5, theme: "auto", range: 600, vhost: "", pageSize: 100, columns: {} };

function stored() {
  try {
    return { ...DEFAULTS, ...JSON.parse(localStorage.getItem(KEY) || "{}") };
  } catch {
    return { ...DEFAULTS };
  }
}

export const settings = new Store(stored());
settings.listeners.add((value) => localStorage.setItem(KEY, JSON.stringify(value)));

const systemDark = matchMedia("(prefers-color-scheme: dark)");

export function isDark() {
  const { theme } = settings.value;
  return theme === "dark" || (theme === "auto" && systemDark.matches);
}

function paint() {
  document.documentElement.dataset.theme = isDark() ? "dark" : "light";
}
settings.listeners.add(paint);
systemDark.addEventListener("change", () => settings.set({}));
paint();

export const INTERVALS = [[5, "every 5 s"], [10, "every 10 s"], [30, "every 30 s"], [60, "every minute"], [0, "never"]];
/** Seconds that a chart covers, seconds between two samples, and the name of the range. */
export const RANGES = [
  [60, 5, "Last minute"],
  [600, 5, "Last ten minutes"],
  [3600, 60, "Last hour"],
  [28800, 600, "Last eight hours"],
  [86400, 1800, "Last day"],
];
/** Samples of connections, channels and exchanges are kept for ten minutes. */
export const SHORT_RANGES = RANGES.slice(0, 2);

/** Returns the parameters of a request for samples; the kinds are lengths, msg_rates, data_rates and node_stats. */
export function samples(range, ...kinds) {
  const [age, step] = RANGES.find(([seconds]) => seconds === range) || RANGES[1];
  return Object.fromEntries(kinds.flatMap((kind) => [[`${kind}_age`, age], [`${kind}_incr`, step]]));
}
