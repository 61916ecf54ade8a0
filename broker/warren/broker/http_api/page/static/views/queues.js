/** Queues and streams: the list, and a form that adds one. */
import { Features } from "../components/features.js";
import { Form, argumentsOf, useVhostField } from "../components/form.js";
import { QueueLink } from "../components/links.js";
import { Section, State } from "../components/parts.js";
import { ListTable, valueColumn } from "../components/table.js";
import { api, path } from "../core/api.js";
import { bytes, number, percent, rate } from "../core/format.js";
import { html } from "../core/html.js";
import { settings } from "../core/settings.js";
import { useStore } from "../core/store.js";
import { queueArguments } from "./queue_arguments.js";

const FEATURES = ["vhost", "durable", "auto_delete", "exclusive", "owner_pid_details.name", "arguments", "policy", "operator_policy"];
const countColumn = (id, title, name, more) => valueColumn(id, title, name, number, { group: "Messages", ...more });
const sizeColumn = (id, title, name) => valueColumn(id, title, name, bytes, { group: "Message bytes", hidden: true });
const rateColumn = (id, title, name, more) => valueColumn(id, title, `message_stats.${name}_details.rate`, rate, { group: "Message rates", ...more });
const COLUMNS = [
  { id: "name", title: "Name", sort: "name", always: true, needs: ["name", "vhost"], cell: (row) => html`<${QueueLink} vhost=${row.vhost} name=${row.name} />` },
  { id: "vhost", title: "Virtual host", sort: "vhost" },
  { id: "type", title: "Type", sort: "type" },
  { id: "features", title: "Features", needs: FEATURES, cell: (row) => html`<${Features} row=${row} />` },
  { id: "policy", title: "Policy", sort: "policy", hidden: true },
  valueColumn("consumers", "Consumers", "consumers", number, { hidden: true }),
  valueColumn("capacity", "Consumer capacity", "consumer_capacity", percent, { hidden: true }),
  { id: "state", title: "State", sort: "state", cell: (row) => html`<${State} value=${row.state} />` },
  valueColumn("memory", "Memory", "memory", bytes, { hidden: true }),
  countColumn("ready", "Ready", "messages_ready"),
  countColumn("unacked", "Unacked", "messages_unacknowledged"),
  countColumn("delayed", "Delayed", "messages_delayed", { hidden: true }),
  countColumn("in_memory", "In memory", "messages_ram", { hidden: true }),
  countColumn("persistent", "Persistent", "messages_persistent", { hidden: true }),
  countColumn("total", "Total", "messages"),
  sizeColumn("bytes_ready", "Ready", "message_bytes_ready"),
  sizeColumn("bytes_unacked", "Unacked", "message_bytes_unacknowledged"),
  sizeColumn("bytes_in_memory", "In memory", "message_bytes_ram"),
  sizeColumn("bytes_persistent", "Persistent", "message_bytes_persistent"),
  sizeColumn("bytes", "Total", "message_bytes"),
  rateColumn("incoming", "Incoming", "publish"),
  rateColumn("deliver", "Deliver / get", "deliver_get"),
  rateColumn("redelivered", "Redelivered", "redeliver", { hidden: true }),
  rateColumn("ack", "Ack", "ack"),
];
const TYPES = [["", "Default of the virtual host"], ["classic", "Classic"], ["quorum", "Quorum"], ["stream", "Stream"]];
const mayBeTransient = ({ type }) => type === "" || type === "classic";

function AddQueue() {
  const fields = [
    useVhostField(),
    { name: "type", label: "Type", type: "select", value: "", options: TYPES },
    { name: "name", label: "Name", required: true },
    { name: "durable", label: "Durable", type: "checkbox", value: true, shown: mayBeTransient },
    { name: "auto_delete", label: "Auto delete", type: "checkbox", help: "Delete it when its last consumer ends.", shown: mayBeTransient },
    { name: "arguments", label: "Arguments", type: "arguments", presets: ({ type }) => queueArguments(type) },
  ];
  const submit = (values) => api.put(path`queues/${values.vhost}/${values.name}`, {
    durable: !mayBeTransient(values) || values.durable,
    auto_delete: mayBeTransient(values) && values.auto_delete,
    arguments: { ...argumentsOf(values.arguments), ...(values.type ? { "x-queue-type": values.type } : {}) },
  });
  return html`<${Form} fields=${fields} action="Add queue" submit=${submit} done=${(values) => `Queue ${values.name} is declared.`} />`;
}

export function Queues() {
  const { vhost } = useStore(settings);
  return html`<h1>Queues and Streams</h1>
    <${ListTable} id="queues" routed caption="Queues and streams" path=${vhost ? path`queues/${vhost}` : "queues"} columns=${COLUMNS}
      rowKey=${(row) => `${row.vhost}\n${row.name}`} empty="There are no queues that you may see." />
    <${Section} title="Add a queue" open=${false}><${AddQueue} /><//>`;
}
