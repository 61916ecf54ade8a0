/** Topology of a virtual host: risks, the graph, and the same as tables. */
import { ExchangeLink, QueueLink } from "../../components/links.js";
import { Loaded, Section } from "../../components/parts.js";
import { RowsTable } from "../../components/table.js";
import { api, path } from "../../core/api.js";
import { number, rate } from "../../core/format.js";
import { html } from "../../core/html.js";
import { usePoll } from "../../core/poll.js";
import { link, navigate, setQuery, useRoute } from "../../core/router.js";
import { settings } from "../../core/settings.js";
import { useStore } from "../../core/store.js";
import { vhosts } from "../../core/vhosts.js";
import { TopologyGraph } from "./graph.js";

const MOST_DRAWN = 150;

/** Returns the nodes whose names contain a text, and their neighbours; of all, without a text. */
function near({ nodes, edges }, text) {
  if (!text) return nodes;
  const chosen = new Set(nodes.filter((each) => each.name.includes(text)).map((each) => each.id));
  const found = new Set(chosen);
  for (const { source, target } of edges) {
    if (chosen.has(source)) found.add(target);
    if (chosen.has(target)) found.add(source);
  }
  return nodes.filter((each) => found.has(each.id));
}

function nameOf(vhost, id) {
  const [kind, ...rest] = id.split(":");
  const name = rest.join(":");
  return html`<${kind === "queue" ? QueueLink : ExchangeLink} vhost=${vhost} name=${name} /> <span class="kind">${kind}</span>`;
}

function Tables({ vhost, nodes, edges }) {
  const objects = [
    { id: "name", title: "Name", sort: "name", cell: (row) => nameOf(vhost, row.id) },
    { id: "type", title: "Type", sort: "type" },
    { id: "messages", title: "Messages", sort: "messages", number: true, cell: (row) => number(row.messages) },
    { id: "consumers", title: "Consumers", sort: "consumers", number: true, cell: (row) => number(row.consumers) },
    { id: "in", title: "In", sort: "in_rate", number: true, cell: (row) => rate(row.in_rate) },
    { id: "out", title: "Out", sort: "out_rate", number: true, cell: (row) => rate(row.out_rate) },
  ];
  const ways = [
    { id: "source", title: "From", cell: (row) => nameOf(vhost, row.source) },
    { id: "kind", title: "By" },
    { id: "routing_key", title: "Routing key" },
    { id: "target", title: "To", cell: (row) => nameOf(vhost, row.target) },
  ];
  return html`<h3>Exchanges and queues</h3><${RowsTable} plain id="topology" caption="Exchanges and queues" columns=${objects} rows=${nodes} rowKey=${(row) => row.id} />
    <h3>Ways</h3><${RowsTable} plain id="topology-ways" rowText=${(row) => `${row.source} ${row.target} ${row.routing_key}`} filterLabel="Filter" caption="Ways" columns=${ways} rows=${edges} rowKey=${(row) => `${row.kind}\n${row.source}\n${row.target}\n${row.routing_key}`} empty="Nothing leads from one to another." />`;
}

function Risks({ vhost, risks }) {
  const columns = [
    { id: "subject", title: "Object", cell: (row) => nameOf(vhost, row.subject) },
    { id: "kind", title: "Kind", sort: "kind", cell: (row) => html`<span class=${row.kind === "loss" ? "alarm" : ""}>${row.kind}</span>` },
    { id: "text", title: "Risk" },
    { id: "advice", title: "Advice" },
  ];
  return html`<${RowsTable} plain id="topology-risks" caption="Risks" columns=${columns} rows=${risks} rowKey=${(row) => `${row.subject}\n${row.text}`} rowText=${(row) => `${row.subject} ${row.text}`}
    filterLabel="Filter" empty="No message can vanish unnoticed." />`;
}

function Choice({ vhost, name }) {
  const { names } = useStore(vhosts);
  const submit = (event) => {
    event.preventDefault();
    setQuery({ name: event.target.elements.name.value || undefined });
  };
  return html`<form class="controls" onSubmit=${submit}>
    <label>Of virtual host <select value=${vhost} onChange=${(event) => navigate(link`topology/${event.target.value}`)}>${names.map((each) => html`<option key=${each} value=${each}>${each}</option>`)}</select></label>
    <label>Name contains <input key=${name} name="name" type="search" defaultValue=${name} maxlength="255" spellcheck=${false} /></label>
    <button type="submit">Show</button>
  </form>`;
}

function Shown({ vhost, found, name }) {
  const nodes = near(found, name);
  const drawn = nodes.slice(0, MOST_DRAWN);
  const ids = new Set(drawn.map((each) => each.id));
  const within = (among) => found.edges.filter((each) => among.has(each.source) && among.has(each.target));
  const risks = name ? found.risks.filter((each) => nodes.some((node) => node.id === each.subject)) : found.risks;
  return html`
    <${Section} title=${`Where a message could vanish (${number(risks.length)})`}><${Risks} vhost=${vhost} risks=${risks} /><//>
    <${Section} title="Graph">
      ${drawn.length ? html`<${TopologyGraph} vhost=${vhost} nodes=${drawn} edges=${within(ids)} risks=${risks} />` : html`<p class="empty">There are no such exchanges and queues.</p>`}
      ${(nodes.length > drawn.length || !found.complete) && html`<p class="empty">${number(drawn.length)} of ${number(name ? nodes.length : found.exchanges + found.queues)} exchanges and queues are drawn; choose some by a part of their names.</p>`}
    <//>
    <${Section} title="As tables" open=${false}><${Tables} vhost=${vhost} nodes=${nodes} edges=${within(new Set(nodes.map((each) => each.id)))} /><//>`;
}

export function TopologyView({ vhost }) {
  const { query } = useRoute();
  const poll = usePoll((signal) => api.get(path`warren/topology/${vhost}`, { signal }), [vhost]);
  const name = query.name || "";
  return html`<h1>Topology of ${vhost}</h1><${Choice} vhost=${vhost} name=${name} />
    <${Loaded} poll=${poll}>${(found) => html`<${Shown} vhost=${vhost} found=${found} name=${name} />`}<//>`;
}

/** The topology of the virtual host that is chosen for the page, or of the first. */
export function Topology() {
  const { names } = useStore(vhosts);
  const { vhost } = useStore(settings);
  const chosen = vhost || (names.includes("/") ? "/" : names[0]);
  if (chosen === undefined) return html`<h1>Topology</h1><p class="empty">There is no virtual host that you may see.</p>`;
  return html`<${TopologyView} vhost=${chosen} />`;
}
