/** Consumers of a queue or of a channel. */
import { text, yesNo } from "../core/format.js";
import { html } from "../core/html.js";
import { ChannelLink, QueueLink } from "./links.js";
import { Arguments } from "./parts.js";
import { RowsTable } from "./table.js";

const TAG = { id: "tag", title: "Consumer tag", sort: "consumer_tag", always: true, cell: (row) => row.consumer_tag };
const CHANNEL = { id: "channel", title: "Channel", sort: "channel_details.name", cell: (row) => html`<${ChannelLink} name=${row.channel_details.name} />` };
const QUEUE = { id: "queue", title: "Queue", sort: "queue.name", cell: (row) => html`<${QueueLink} vhost=${row.queue.vhost} name=${row.queue.name} />` };
const REST = [
  { id: "user", title: "User", sort: "channel_details.user", hidden: true, cell: (row) => row.channel_details.user },
  { id: "ack_required", title: "Ack required", sort: "ack_required", cell: (row) => yesNo(row.ack_required) },
  { id: "exclusive", title: "Exclusive", sort: "exclusive", cell: (row) => yesNo(row.exclusive) },
  { id: "prefetch", title: "Prefetch", sort: "prefetch_count", number: true, cell: (row) => row.prefetch_count || "no limit" },
  { id: "active", title: "Active", sort: "active", cell: (row) => yesNo(row.active) },
  { id: "activity", title: "Activity", sort: "activity_status", cell: (row) => text(row.activity_status).replaceAll("_", " ") },
  { id: "timeout", title: "Ack timeout", sort: "consumer_timeout", number: true, cell: (row) => (row.consumer_timeout ? `${row.consumer_timeout / 1000} s` : "") },
  { id: "arguments", title: "Arguments", cell: (row) => html`<${Arguments} value=${row.arguments} />` },
];

/** of: "queue" or "channel", the kind of object whose consumers they are. */
export function Consumers({ of, consumers }) {
  return html`<${RowsTable} id=${`consumers-of-${of}`} plain caption="Consumers" rows=${consumers} columns=${[TAG, of === "queue" ? CHANNEL : QUEUE, ...REST]}
    rowKey=${(row) => `${row.channel_details.name}\n${row.consumer_tag}`} rowText=${(row) => `${row.consumer_tag} ${row.channel_details.name} ${row.queue.name}`}
    filterLabel="Filter" empty="There are no consumers." />`;
}
