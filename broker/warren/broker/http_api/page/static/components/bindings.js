/** Bindings of a queue or an exchange, and a form that adds one. */
import { api, exchangePart, path } from "../core/api.js";
import { html } from "../core/html.js";
import { Form, argumentsOf } from "./form.js";
import { ExchangeLink, QueueLink, exchangeTitle } from "./links.js";
import { act, confirm } from "./notices.js";
import { Arguments } from "./parts.js";
import { ListTable } from "./table.js";

const kindPart = (row) => (row.destination_type === "queue" ? "q" : "e");

async function unbind(row) {
  const key = row.routing_key ? ` with the key ${row.routing_key}` : "";
  const sure = await confirm({ title: "Remove the binding?", text: `${row.source} will no longer route messages${key} to ${row.destination}.`, action: "Unbind" });
  if (sure)
    await act("The binding is removed.", () => api.delete(path`bindings/${row.vhost}/e/${exchangePart(row.source)}/${kindPart(row)}/${row.destination}/${row.properties_key}`));
}

const FROM = { id: "source", title: "From", sort: "source", always: true, cell: (row) => html`<${ExchangeLink} vhost=${row.vhost} name=${row.source} />` };
const TO = [
  { id: "destination", title: "To", sort: "destination", always: true, cell: (row) => html`<${row.destination_type === "queue" ? QueueLink : ExchangeLink} vhost=${row.vhost} name=${row.destination} />` },
  { id: "destination_type", title: "Kind", sort: "destination_type" },
];
const REST = [
  { id: "routing_key", title: "Routing key", sort: "routing_key" },
  { id: "arguments", title: "Arguments", cell: (row) => html`<${Arguments} value=${row.arguments} />` },
  { id: "remove", title: "Action", always: true, cell: (row) => (row.source ? html`<button type="button" onClick=${() => unbind(row)}>Unbind</button>` : "by default") },
];

/** where: path of the API. incoming: true for bindings that lead to the object of the view, false for those from it. */
export function Bindings({ where, incoming = false }) {
  return html`<${ListTable} id=${incoming ? "bindings-to" : "bindings-from"} whole plain caption=${incoming ? "Bindings to this" : "Bindings from this"} path=${where}
    columns=${[...(incoming ? [FROM] : TO), ...REST]} rowKey=${(row) => [row.source, row.destination_type, row.destination, row.properties_key].join("\n")}
    rowText=${(row) => `${row.source} ${row.destination} ${row.routing_key}`} filterLabel="Filter" empty="There are no bindings." />`;
}

const KEY = { name: "key", label: "Routing key" };
const ARGUMENTS = {
  name: "arguments", label: "Arguments", type: "arguments",
  presets: [
    ["x-match", "x-match", "String", "all", "Of a headers exchange: all headers must be equal, or any one. all-with-x and any-with-x count headers that begin with x-, too."],
  ],
};
const bind = (vhost, source, kind, destination, values) =>
  api.post(path`bindings/${vhost}/e/${source}/${kind}/${destination}`, { routing_key: values.key, arguments: argumentsOf(values.arguments) });

/** Adds a binding to a queue. */
export function BindQueueForm({ vhost, queue }) {
  const fields = [{ name: "source", label: "From exchange", type: "name", kind: "exchanges", vhost, required: true }, KEY, ARGUMENTS];
  return html`<${Form} fields=${fields} action="Bind" submit=${(values) => bind(vhost, values.source, "q", queue, values)}
    done=${(values) => `The queue is bound to ${exchangeTitle(values.source)}.`} />`;
}

/** Adds a binding from an exchange to a queue or to another exchange. */
export function BindExchangeForm({ vhost, exchange }) {
  const kindOf = (values) => (values.kind === "q" ? "queues" : "exchanges");
  const fields = [
    { name: "kind", label: "To", type: "select", value: "q", options: [["q", "queue"], ["e", "exchange"]] },
    { name: "destination", label: "Name", type: "name", kind: kindOf, vhost, required: true },
    KEY,
    ARGUMENTS,
  ];
  return html`<${Form} fields=${fields} action="Bind" submit=${(values) => bind(vhost, exchange, values.kind, values.destination, values)}
    done=${(values) => `${values.destination} is bound.`} />`;
}
