/** Virtual hosts: the list, and a form that adds one. */
import { Allowed } from "../../components/allowed.js";
import { Form, wordsOf } from "../../components/form.js";
import { Section } from "../../components/parts.js";
import { ListTable, valueColumn } from "../../components/table.js";
import { api, path } from "../../core/api.js";
import { number, rate, yesNo } from "../../core/format.js";
import { html } from "../../core/html.js";
import { link } from "../../core/router.js";
import { loadVhosts } from "../../core/vhosts.js";

const COLUMNS = [
  { id: "name", title: "Name", sort: "name", always: true, cell: (row) => html`<a href=${link`vhosts/${row.name}`}>${row.name}</a>` },
  { id: "description", title: "Description", sort: "description" },
  { id: "tags", title: "Tags", sort: "tags", cell: (row) => row.tags.join(", ") },
  { id: "default_queue_type", title: "Default queue type", sort: "default_queue_type" },
  { id: "tracing", title: "Tracing", sort: "tracing", cell: (row) => yesNo(row.tracing) },
  { id: "protected", title: "Protected", sort: "protected_from_deletion", needs: ["protected_from_deletion"], hidden: true, cell: (row) => yesNo(row.protected_from_deletion) },
  valueColumn("ready", "Ready", "messages_ready", number, { group: "Messages" }),
  valueColumn("unacked", "Unacked", "messages_unacknowledged", number, { group: "Messages" }),
  valueColumn("total", "Total", "messages", number, { group: "Messages" }),
  valueColumn("publish", "Publish", "message_stats.publish_details.rate", rate, { group: "Message rates" }),
  valueColumn("deliver", "Deliver / get", "message_stats.deliver_get_details.rate", rate, { group: "Message rates" }),
  valueColumn("ack", "Ack", "message_stats.ack_details.rate", rate, { group: "Message rates", hidden: true }),
];

/** Fields of what describes a virtual host. */
export const vhostFields = ({ description = "", tags = [], default_queue_type: type = "classic" } = {}) => [
  { name: "description", label: "Description", value: description },
  { name: "tags", label: "Tags", value: tags.join(", "), help: "Names with commas between." },
  { name: "type", label: "Default queue type", type: "select", value: type, options: [["classic", "Classic"], ["quorum", "Quorum"], ["stream", "Stream"]] },
];

/** Returns what the API takes for these fields. */
export const vhostOf = (values) => ({ description: values.description, tags: wordsOf(values.tags).join(","), default_queue_type: values.type });

function AddVirtualHost() {
  const fields = [{ name: "name", label: "Name", required: true }, ...vhostFields()];
  const submit = async (values) => {
    await api.put(path`vhosts/${values.name}`, vhostOf(values));
    await loadVhosts();
  };
  return html`<${Form} fields=${fields} action="Add virtual host" submit=${submit} done=${(values) => `Virtual host ${values.name} is added; you have all permissions in it.`} />`;
}

export function VirtualHosts() {
  return html`<h1>Virtual hosts</h1>
    <${ListTable} id="vhosts" routed caption="Virtual hosts" path="vhosts" columns=${COLUMNS} rowKey=${(row) => row.name} empty="There is no virtual host that you may see." />
    <${Section} title="Add a virtual host" open=${false}><${Allowed} role="administrator" task="add virtual hosts"><${AddVirtualHost} /><//><//>`;
}
