/** Feature flags and deprecated features, as RabbitMQ names them. */
import { Loaded } from "../../components/parts.js";
import { RowsTable } from "../../components/table.js";
import { api } from "../../core/api.js";
import { yesNo } from "../../core/format.js";
import { html } from "../../core/html.js";
import { usePoll } from "../../core/poll.js";

const FLAGS = [
  { id: "name", title: "Name" },
  { id: "state", title: "State", cell: (row) => html`<span class=${`state ${row.state === "enabled" ? "running" : ""}`}>${row.state}</span>` },
  { id: "stability", title: "Stability" },
  { id: "desc", title: "Description" },
];
const DEPRECATED = [
  { id: "name", title: "Name", cell: (row) => (row.doc_url.startsWith("https://") ? html`<a href=${row.doc_url} rel="noreferrer">${row.name}</a>` : row.name) },
  { id: "phase", title: "Phase", cell: (row) => row.deprecation_phase.replaceAll("_", " ") },
  { id: "state", title: "State" },
  { id: "used", title: "Used since the start", cell: (row) => html`<span class=${row.used ? "alarm" : ""}>${yesNo(row.used)}</span>` },
];

/** Shows a column only if a row has a value for it. */
const filled = (columns, rows) => columns.filter(({ id, cell }) => cell || rows.some((row) => row[id]));

export function FeatureFlags() {
  const poll = usePoll((signal) => api.get("feature-flags", { signal }), []);
  return html`<h1>Feature flags</h1><p class="place">RabbitMQ's feature flags whose features this broker has. All are on, and none can be turned off.</p>
    <${Loaded} poll=${poll}>${(flags) => html`<${RowsTable} plain id="feature-flags" caption="Feature flags" columns=${filled(FLAGS, flags)} rows=${flags} rowKey=${(row) => row.name} />`}<//>`;
}

export function DeprecatedFeatures() {
  const poll = usePoll(async (signal) => {
    const [all, used] = await Promise.all([api.get("deprecated-features", { signal }), api.get("deprecated-features/used", { signal })]);
    const names = used.map((each) => each.name);
    return all.map((each) => ({ ...each, used: names.includes(each.name) }));
  }, []);
  return html`<h1>Deprecated features</h1><p class="place">What RabbitMQ will remove: whoever uses it cannot move to a later version as it is.</p>
    <${Loaded} poll=${poll}>${(rows) => html`<${RowsTable} plain id="deprecated-features" caption="Deprecated features" columns=${DEPRECATED} rows=${rows} rowKey=${(row) => row.name} />`}<//>`;
}
