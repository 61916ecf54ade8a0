/** Shovels: their status, and a form that adds one. */
import { Allowed } from "../../components/allowed.js";
import { Form, useVhostField } from "../../components/form.js";
import { act } from "../../components/notices.js";
import { Section, State } from "../../components/parts.js";
import { RemoveButton } from "../../components/remove_button.js";
import { ListTable } from "../../components/table.js";
import { api, path } from "../../core/api.js";
import { number } from "../../core/format.js";
import { html } from "../../core/html.js";
import { hasRole } from "../../core/session.js";
import { settings } from "../../core/settings.js";
import { useStore } from "../../core/store.js";

/** Returns what a shovel consumes from or publishes to. end: "src" or "dest". */
function endOf(row, end) {
  const [queue, exchange, key] = ["queue", "exchange", "exchange_key"].map((name) => row[`${end}_${name}`]);
  if (queue !== undefined) return `queue ${queue}`;
  if (row[`${end}_uri`] === undefined) return "";
  const routing = key ? `, ${end === "src" ? "binding" : "routing"} key ${key}` : "";
  return exchange === undefined ? `exchange as published${routing}` : `exchange ${exchange || "(default)"}${routing}`;
}

function end(id, title) {
  return { id, title, cell: (row) => html`${endOf(row, id)}${row[`${id}_uri`] && html` <small>${row[`${id}_uri`]}</small>`}` };
}

const COLUMNS = [
  { id: "name", title: "Name", sort: "name", always: true },
  { id: "vhost", title: "Virtual host", sort: "vhost" },
  { id: "state", title: "State", sort: "state", cell: (row) => html`<${State} value=${row.state} />${row.reason && html` ${row.reason}`}` },
  end("src", "Source"),
  end("dest", "Destination"),
  { id: "forwarded", title: "Forwarded", sort: "forwarded", number: true, cell: (row) => number(row.forwarded) },
  { id: "remaining", title: "Remaining", sort: "remaining", number: true, cell: (row) => (row.remaining === "unlimited" ? "unlimited" : number(row.remaining)) },
  { id: "timestamp", title: "Last change", sort: "timestamp" },
];
const where = (row) => path`shovels/vhost/${row.vhost}/${row.name}`;
const ACTIONS = {
  id: "actions", title: "Actions", always: true, cell: (row) => html`
    <button type="button" aria-label=${`Restart ${row.name}`} onClick=${() => act(`Shovel ${row.name} connects again.`, () => api.delete(`${where(row)}/restart`))}>Restart</button>
    <${RemoveButton} title="Delete" label=${`Delete ${row.name}`} question="Delete the shovel?" text=${`Shovel ${row.name} will stop. What it has not moved stays at the source.`}
      remove=${() => api.delete(where(row))} done=${`Shovel ${row.name} is deleted.`} />`,
};

const is = (field, ...kinds) => (values) => kinds.includes(values[field]);
const URI_HELP = "amqp:// is this broker, amqp:///NAME another virtual host of it. Other brokers: amqp://USER:PASSWORD@HOST:PORT/NAME.";

function AddShovel() {
  const fields = [
    useVhostField(),
    { name: "name", label: "Name", required: true },
    { name: "src-uri", label: "Source URI", value: "amqp://", required: true, help: URI_HELP },
    { name: "from", label: "Consume from", type: "select", value: "queue", options: [["queue", "a queue"], ["exchange", "an exchange"]] },
    { name: "from-name", label: "Source queue or exchange", required: true },
    { name: "from-key", label: "Binding key", shown: is("from", "exchange") },
    { name: "dest-uri", label: "Destination URI", value: "amqp://", required: true },
    { name: "to", label: "Publish to", type: "select", value: "queue", options: [["queue", "a queue"], ["exchange", "an exchange"], ["published", "the exchange of each message"]] },
    { name: "to-name", label: "Destination queue or exchange", required: true, shown: is("to", "queue", "exchange") },
    { name: "to-key", label: "Routing key", help: "Empty: that of each message.", shown: is("to", "exchange", "published") },
    { name: "ack-mode", label: "Acknowledge", type: "select", value: "on-confirm", options: [["on-confirm", "when the destination has confirmed"], ["on-publish", "when it is published"], ["no-ack", "at delivery"]] },
    { name: "after", label: "End", type: "select", value: "never", options: [["never", "never"], ["queue-length", "after the messages that the queue has now"]] },
    { name: "prefetch", label: "Prefetch", type: "number", value: "1000", min: 0, max: 65535 },
    { name: "delay", label: "Reconnect delay in seconds", type: "number", value: "5", min: 0 },
    { name: "headers", label: "Add forward headers", type: "checkbox" },
  ];
  const submit = (values) => {
    const value = {
      "src-uri": values["src-uri"], "dest-uri": values["dest-uri"], "ack-mode": values["ack-mode"], "src-delete-after": values.after,
      "src-prefetch-count": Number(values.prefetch), "reconnect-delay": Number(values.delay), "dest-add-forward-headers": values.headers,
      [`src-${values.from}`]: values["from-name"],
    };
    if (values.from === "exchange") value["src-exchange-key"] = values["from-key"];
    if (values.to !== "published") value[`dest-${values.to}`] = values["to-name"];
    if (values.to !== "queue" && values["to-key"]) value["dest-exchange-key"] = values["to-key"];
    return api.put(path`parameters/shovel/${values.vhost}/${values.name}`, { value });
  };
  return html`<${Form} fields=${fields} action="Add shovel" submit=${submit} done=${(values) => `Shovel ${values.name} is added.`} />`;
}

export function Shovels() {
  const { vhost } = useStore(settings);
  const columns = hasRole("policymaker") ? [...COLUMNS, ACTIONS] : COLUMNS;
  return html`<h1>Shovels</h1>
    <p class="place">A shovel moves messages from a queue or exchange to another one, of this broker or of others.</p>
    <${Section} title="Shovels">
      <${ListTable} id="shovels" whole caption="Shovels" path=${vhost ? path`shovels/${vhost}` : "shovels"} columns=${columns} rowKey=${(row) => `${row.vhost}\n${row.name}`} rowText=${(row) => `${row.name} ${row.src_queue ?? ""} ${row.dest_queue ?? ""}`} empty="There are none." />
    <//>
    <${Section} title="Add a shovel" open=${false}><${Allowed} role="policymaker" task="add shovels"><${AddShovel} /><//><//>`;
}
