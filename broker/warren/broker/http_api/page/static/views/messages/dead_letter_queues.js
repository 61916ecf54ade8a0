/** Queues that dead letters come to. */
import { ListTable } from "../../components/table.js";
import { path } from "../../core/api.js";
import { number } from "../../core/format.js";
import { html } from "../../core/html.js";
import { link } from "../../core/router.js";
import { settings } from "../../core/settings.js";
import { useStore } from "../../core/store.js";

const COLUMNS = [
  { id: "name", title: "Queue", sort: "name", always: true, cell: (row) => html`<a href=${link`dead-letters/${row.vhost}/${row.name}`}>${row.name}</a>` },
  { id: "vhost", title: "Virtual host", sort: "vhost" },
  { id: "type", title: "Type", sort: "type" },
  { id: "ready", title: "Ready", sort: "messages_ready", number: true, cell: (row) => number(row.messages_ready) },
  { id: "unacked", title: "Unacked", sort: "messages_unacknowledged", number: true, cell: (row) => number(row.messages_unacknowledged) },
  { id: "from", title: "From queues", cell: (row) => row.from_queues.join(", ") },
];

export function DeadLetterQueues() {
  const { vhost } = useStore(settings);
  return html`<h1>Dead letters</h1><p class="place">Queues that dead letters come to; open one for the causes.</p>
    <${ListTable} id="dead-letters" routed whole caption="Queues with dead letters" path=${vhost ? path`warren/dead-letters/${vhost}` : "warren/dead-letters"} columns=${COLUMNS}
      rowKey=${(row) => `${row.vhost}\n${row.name}`} empty="No queue that you may see gets dead letters." />`;
}
