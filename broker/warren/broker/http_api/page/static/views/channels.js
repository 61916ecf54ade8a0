/** Channels: the list of all, and that of one connection. */
import { ChannelLink } from "../components/links.js";
import { State } from "../components/parts.js";
import { ListTable, valueColumn } from "../components/table.js";
import { path } from "../core/api.js";
import { number, rate } from "../core/format.js";
import { html } from "../core/html.js";
import { settings } from "../core/settings.js";
import { useStore } from "../core/store.js";

const MODES = { T: "Transactional", C: "Publisher confirms" };

/** Returns the letter of a channel's mode: T, C or none. */
export const modeOf = (row) => (row.transactional ? "T" : row.confirm ? "C" : "");

export function Mode({ row, words = false }) {
  const letter = modeOf(row);
  if (words) return MODES[letter] || "no guarantee for publishes";
  return letter && html`<abbr title=${MODES[letter]}>${letter}</abbr>`;
}

/** The limit of each new consumer, and that which all consumers of the channel share. */
export const prefetchOf = (row) =>
  [row.prefetch_count && number(row.prefetch_count), row.global_prefetch_count && `${number(row.global_prefetch_count)} (global)`].filter(Boolean).join(", ");

const rateColumn = (id, title, name, more) => valueColumn(id, title, `message_stats.${name}_details.rate`, rate, { group: "Message rates", ...more });

const COLUMNS = [
  { id: "name", title: "Channel", sort: "name", always: true, cell: (row) => html`<${ChannelLink} name=${row.name} />` },
  { id: "vhost", title: "Virtual host", sort: "vhost" },
  { id: "user", title: "User name", sort: "user" },
  { id: "mode", title: "Mode", needs: ["transactional", "confirm"], cell: (row) => html`<${Mode} row=${row} />` },
  { id: "state", title: "State", sort: "state", cell: (row) => html`<${State} value=${row.state} />` },
  valueColumn("unconfirmed", "Unconfirmed", "messages_unconfirmed", number, { group: "Details" }),
  valueColumn("consumers", "Consumers", "consumer_count", number, { group: "Details", hidden: true }),
  { id: "prefetch", title: "Prefetch", sort: "prefetch_count", number: true, group: "Details", needs: ["prefetch_count", "global_prefetch_count"], cell: prefetchOf },
  valueColumn("unacked", "Unacked", "messages_unacknowledged", number, { group: "Details" }),
  valueColumn("uncommitted", "Messages uncommitted", "messages_uncommitted", number, { group: "Transactions", hidden: true }),
  valueColumn("acks_uncommitted", "Acks uncommitted", "acks_uncommitted", number, { group: "Transactions", hidden: true }),
  rateColumn("publish", "Publish", "publish"),
  rateColumn("confirm", "Confirm", "confirm"),
  rateColumn("drop", "Unroutable (drop)", "drop_unroutable", { hidden: true }),
  rateColumn("return", "Unroutable (return)", "return_unroutable", { hidden: true }),
  rateColumn("deliver", "Deliver / get", "deliver_get"),
  rateColumn("redeliver", "Redelivered", "redeliver", { hidden: true }),
  rateColumn("ack", "Ack", "ack"),
];

/** path: that of the API. The other properties are those of ListTable. */
export function ChannelList(properties) {
  return html`<${ListTable} caption="Channels" columns=${COLUMNS} rowKey=${(row) => row.name} empty="There are no channels that you may see." ...${properties} />`;
}

export function Channels() {
  const { vhost } = useStore(settings);
  return html`<h1>Channels</h1><${ChannelList} id="channels" routed path=${vhost ? path`vhosts/${vhost}/channels` : "channels"} />`;
}
