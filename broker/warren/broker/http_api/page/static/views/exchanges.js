/** Exchanges: the list, and a form that adds one. */
import { Features } from "../components/features.js";
import { Form, argumentsOf, useVhostField } from "../components/form.js";
import { ExchangeLink } from "../components/links.js";
import { Section } from "../components/parts.js";
import { ListTable, valueColumn } from "../components/table.js";
import { api, path } from "../core/api.js";
import { rate } from "../core/format.js";
import { html, useEffect, useState } from "../core/html.js";
import { settings } from "../core/settings.js";
import { useStore } from "../core/store.js";
import { exchangeArguments } from "./exchange_arguments.js";

const COLUMNS = [
  { id: "name", title: "Name", sort: "name", always: true, needs: ["name", "vhost"], cell: (row) => html`<${ExchangeLink} vhost=${row.vhost} name=${row.name} />` },
  { id: "vhost", title: "Virtual host", sort: "vhost" },
  { id: "type", title: "Type", sort: "type" },
  { id: "features", title: "Features", needs: ["durable", "auto_delete", "internal", "arguments", "policy"], cell: (row) => html`<${Features} row=${row} />` },
  { id: "policy", title: "Policy", sort: "policy", hidden: true },
  valueColumn("in", "Rate in", "message_stats.publish_in_details.rate", rate, { group: "Message rates" }),
  valueColumn("out", "Rate out", "message_stats.publish_out_details.rate", rate, { group: "Message rates" }),
];
const USUAL = ["direct", "fanout", "headers", "topic"];

/** Returns the types of exchanges that the broker has. */
function useTypes() {
  const [types, setTypes] = useState(USUAL);
  useEffect(() => {
    api.get("overview", { query: { columns: "exchange_types" } }).then((found) => setTypes(found.exchange_types.map((each) => each.name)), () => {});
  }, []);
  return types;
}

function AddExchange() {
  const fields = [
    useVhostField(),
    { name: "name", label: "Name", required: true },
    { name: "type", label: "Type", type: "select", value: "direct", options: useTypes() },
    { name: "durable", label: "Durable", type: "checkbox", value: true },
    { name: "auto_delete", label: "Auto delete", type: "checkbox", help: "Delete it when its last binding is removed." },
    { name: "internal", label: "Internal", type: "checkbox", help: "Clients cannot publish to it; other exchanges can." },
    { name: "arguments", label: "Arguments", type: "arguments", presets: (values) => exchangeArguments(values.type) },
  ];
  const submit = ({ vhost, name, type, durable, auto_delete, internal, arguments: rows }) =>
    api.put(path`exchanges/${vhost}/${name}`, { type, durable, auto_delete, internal, arguments: argumentsOf(rows) });
  return html`<${Form} fields=${fields} action="Add exchange" submit=${submit} done=${(values) => `Exchange ${values.name} is declared.`} />`;
}

export function Exchanges() {
  const { vhost } = useStore(settings);
  return html`<h1>Exchanges</h1>
    <${ListTable} id="exchanges" routed caption="Exchanges" path=${vhost ? path`exchanges/${vhost}` : "exchanges"} columns=${COLUMNS}
      rowKey=${(row) => `${row.vhost}\n${row.name}`} empty="There are no exchanges that you may see." />
    <${Section} title="Add an exchange" open=${false}><${AddExchange} /><//>`;
}
