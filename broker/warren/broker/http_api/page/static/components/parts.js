/** Small parts of many views: sections, lists of facts, refusals, arguments. */
import { html } from "../core/html.js";
import { text } from "../core/format.js";

/** A section that can be folded. */
export function Section({ title, open = true, children }) {
  return html`<details class="section" open=${open}>
    <summary><h2>${title}</h2></summary>
    <div class="body">${children}</div>
  </details>`;
}

/** Facts as pairs of a name and a value; those without a value are left out. */
export function Facts({ items }) {
  const shown = items.filter(([, value]) => value !== undefined && value !== null && value !== "");
  return html`<dl class="facts">
    ${shown.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}
  </dl>`;
}

/** What a poll did not get. */
export function Problem({ error }) {
  if (!error) return null;
  return html`<p class="problem" role="alert">${error.message}</p>`;
}

/** The body of a view whose data come from a poll: a problem, or what `children` makes of the data. What is gone is not shown. */
export function Loaded({ poll, children }) {
  if (poll.error?.status === 404) return html`<${Problem} error=${poll.error} />`;
  return html`<${Problem} error=${poll.error} />
    ${poll.data === undefined ? !poll.error && html`<p class="loading">Loading …</p>` : children(poll.data)}`;
}

export function Arguments({ value }) {
  const entries = Object.entries(value || {});
  if (!entries.length) return "";
  return html`<dl class="arguments">
    ${entries.map(([name, each]) => html`<div key=${name}><dt>${name}</dt><dd>${each === "" ? '""' : text(each)}</dd></div>`)}
  </dl>`;
}

/** State of an object; what is not running stands out. */
export function State({ value }) {
  return html`<span class=${`state ${value === "running" ? "running" : "other"}`}>${value}</span>`;
}
