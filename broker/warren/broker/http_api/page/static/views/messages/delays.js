/** Delays that wait on the broker, and the messages of a delayed exchange. */
import { Arguments, Loaded } from "../../components/parts.js";
import { ListTable, RowsTable } from "../../components/table.js";
import { api, path } from "../../core/api.js";
import { number, when } from "../../core/format.js";
import { html } from "../../core/html.js";
import { usePoll } from "../../core/poll.js";
import { link, setQuery, useRoute } from "../../core/router.js";
import { settings } from "../../core/settings.js";
import { useStore } from "../../core/store.js";

/** Kinds of delays: title, and address of the messages. */
const KINDS = {
  exchange: ["Delayed exchange", (row) => link`delays/${row.vhost}/${row.name}`],
  retry: ["Delayed retries", (row) => link`messages/${row.vhost}/${row.name}` + "?state=retry"],
  expiry: ["Wait for their expiry", (row) => link`messages/${row.vhost}/${row.name}`],
};
const COLUMNS = [
  { id: "name", title: "Exchange or queue", sort: "name", always: true, cell: (row) => html`<a href=${KINDS[row.kind][1](row)}>${row.name}</a>` },
  { id: "vhost", title: "Virtual host", sort: "vhost" },
  { id: "kind", title: "Kind", sort: "kind", cell: (row) => KINDS[row.kind][0] },
  { id: "messages", title: "Messages", sort: "messages", number: true, cell: (row) => number(row.messages) },
  { id: "due", title: "Next due", sort: "next_due_at", cell: (row) => when(row.next_due_at) },
];

export function Delays() {
  const { vhost } = useStore(settings);
  return html`<h1>Delays</h1><p class="place">Messages that wait for a time: in delayed exchanges, for delayed retries, and in queues from which they go when they expire.</p>
    <${ListTable} id="delays" routed whole caption="Delays" path=${vhost ? path`warren/delays/${vhost}` : "warren/delays"} columns=${COLUMNS}
      rowKey=${(row) => `${row.kind}\n${row.vhost}\n${row.name}`} empty="Nothing waits for a time." />
    <p>Timers and sagas live in stores of their own (Redis, PostgreSQL, SQLite), which the broker does not know: <code>warren timers</code> and <code>warren saga</code> show them.</p>`;
}

export function DelayedMessages({ vhost, exchange }) {
  const { query } = useRoute();
  const poll = usePoll((signal) => api.get(path`warren/exchanges/${vhost}/${exchange}/delayed`, { query: { limit: 100, after: query.after }, signal }), [vhost, exchange, query.after]);
  const columns = [
    { id: "due", title: "Due", cell: (row) => when(row.due_at) },
    { id: "message", title: "Message id", cell: (row) => (row.properties.message_id ? html`<a href=${link`stories/${vhost}/${row.properties.message_id}`}>${row.properties.message_id}</a>` : "") },
    { id: "routing_key", title: "Routing key" },
    { id: "headers", title: "Headers", cell: (row) => html`<${Arguments} value=${row.properties.headers} />` },
    { id: "payload", title: "Payload", cell: (row) => html`<pre tabindex="0" aria-label="Payload">${row.payload}${row.payload_truncated ? "\n…" : ""}</pre>` },
  ];
  return html`<h1>Delayed in ${exchange}</h1><p class="links"><a href=${link`exchanges/${vhost}/${exchange}`}>Exchange</a></p>
    <${Loaded} poll=${poll}>${(page) => html`
      <${RowsTable} plain id="delayed" caption="Delayed messages" columns=${columns} rows=${page.messages} rowKey=${(row) => row.id} rowText=${(row) => `${row.properties.message_id} ${row.routing_key}`} filterLabel="Filter" empty="No message waits here." />
      <div class="pager"><span role="status">${number(page.messages.length)} of ${number(page.total)}</span>
        ${query.after && html`<button type="button" onClick=${() => setQuery({ after: undefined })}>First page</button>`}
        ${page.next && html`<button type="button" onClick=${() => setQuery({ after: page.next })}>Next page</button>`}</div>
    `}<//>`;
}
