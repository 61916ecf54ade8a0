/** Choice of a queue or stream whose messages are to be browsed. */
import { ListTable, valueColumn } from "../../components/table.js";
import { path } from "../../core/api.js";
import { number } from "../../core/format.js";
import { html } from "../../core/html.js";
import { link } from "../../core/router.js";
import { settings } from "../../core/settings.js";
import { useStore } from "../../core/store.js";

const COLUMNS = [
  { id: "name", title: "Queue", sort: "name", always: true, needs: ["name", "vhost"], cell: (row) => html`<a href=${link`messages/${row.vhost}/${row.name}`}>${row.name}</a>` },
  { id: "vhost", title: "Virtual host", sort: "vhost" },
  { id: "type", title: "Type", sort: "type" },
  valueColumn("ready", "Ready", "messages_ready", number),
  valueColumn("unacked", "Unacked", "messages_unacknowledged", number),
];

export function BrowsableQueues() {
  const { vhost } = useStore(settings);
  return html`<h1>Browse messages</h1><p class="place">Messages are shown as they wait, and stay where they are: none is consumed or marked as redelivered.</p>
    <${ListTable} id="browse" routed caption="Queues and streams" path=${vhost ? path`queues/${vhost}` : "queues"} columns=${COLUMNS} rowKey=${(row) => `${row.vhost}\n${row.name}`} empty="There are no queues that you may see." />`;
}
