/** Numbers, sizes, rates and values as text. */

const whole = new Intl.NumberFormat("en");

export const number = (value) => (typeof value === "number" ? whole.format(value) : "");

function scaled(value, base, units) {
  let index = 0;
  while (Math.abs(value) >= base && index < units.length - 1) {
    value /= base;
    index += 1;
  }
  return `${value >= 100 || Number.isInteger(value) ? Math.round(value) : value.toFixed(1)}${units[index]}`;
}

export const bytes = (value) => (typeof value === "number" ? scaled(value, 1024, [" B", " KiB", " MiB", " GiB", " TiB"]) : "");
export const rate = (value) => (typeof value === "number" ? `${scaled(Math.max(value, 0), 1000, ["", "k", "M"])}/s` : "");
export const byteRate = (value) => (typeof value === "number" ? `${bytes(Math.max(value, 0))}/s` : "");
export const percent = (value) => (typeof value === "number" ? `${Math.round(value * 100)} %` : "");
export const yesNo = (value) => (value ? "yes" : "no");
export const when = (milliseconds) => (milliseconds ? new Date(milliseconds).toLocaleString() : "");

export function duration(milliseconds) {
  const minutes = Math.floor(milliseconds / 60000);
  const [days, hours] = [Math.floor(minutes / 1440), Math.floor(minutes / 60) % 24];
  if (days) return `${days} d ${hours} h`;
  return hours ? `${hours} h ${minutes % 60} min` : `${minutes} min ${Math.floor(milliseconds / 1000) % 60} s`;
}

/** Returns a value of any type as text. */
export function text(value) {
  if (value === null || value === undefined) return "";
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

/** Returns the value at a path such as message_stats.publish_details.rate; undefined if there is none. */
export function at(row, where) {
  return where.split(".").reduce((found, name) => (found === null || found === undefined ? undefined : found[name]), row);
}
