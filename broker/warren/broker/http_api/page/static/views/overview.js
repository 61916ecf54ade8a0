/** Overview: totals, charts, the node, churn, ports, definitions. */
import { Allowed } from "../components/allowed.js";
import { Chart, RangeChoice, messageRates, queuedMessages, useRange } from "../components/chart.js";
import { Definitions } from "../components/definitions.js";
import { Loaded, Section } from "../components/parts.js";
import { api } from "../core/api.js";
import { number, rate } from "../core/format.js";
import { html } from "../core/html.js";
import { usePoll } from "../core/poll.js";
import { hasRole } from "../core/session.js";
import { samples } from "../core/settings.js";
import { Nodes } from "./nodes.js";
import { Ports } from "./ports.js";

const OBJECTS = [["connections", "Connections"], ["channels", "Channels"], ["exchanges", "Exchanges"], ["queues", "Queues"], ["consumers", "Consumers"]];
const LINKED = ["connections", "channels", "exchanges", "queues"];
const CHURN = [
  ["Connections", [["connection_created", "Created"], ["connection_closed", "Closed"]]],
  ["Channels", [["channel_created", "Created"], ["channel_closed", "Closed"]]],
  ["Queues", [["queue_declared", "Declared"], ["queue_created", "Created"], ["queue_deleted", "Deleted"]]],
];

export function Overview() {
  const range = useRange();
  const poll = usePoll((signal) => api.get("overview", { query: samples(range, "lengths", "msg_rates"), signal }), [range]);
  return html`<h1>Overview</h1><${Loaded} poll=${poll}>${(found) => html`
    <ul class="totals">${OBJECTS.filter(([name]) => found.object_totals[name] !== undefined).map(([name, title]) => html`<li key=${name}>
      ${LINKED.includes(name) ? html`<a href=${`#/${name}`}>${title} <b>${number(found.object_totals[name])}</b></a>` : html`<span>${title} <b>${number(found.object_totals[name])}</b></span>`}
    </li>`)}</ul>
    <${Section} title="Totals">
      <${RangeChoice} />
      <div class="charts">
        <${Chart} title="Queued messages" format=${number} lines=${queuedMessages(found.queue_totals)} />
        <${Chart} title="Message rates" format=${rate} lines=${messageRates(found.message_stats)} />
      </div>
    <//>
    ${hasRole("monitoring") && html`<${Section} title="Node"><${Nodes} range=${range} /><//>`}
    <${Section} title="Churn" open=${false}><div class="charts">
      ${CHURN.map(([title, counters]) => html`<${Chart} key=${title} title=${title} format=${rate} lines=${counters.map(([name, label]) => ({ label, details: found.churn_rates[`${name}_details`], counter: true }))} />`)}
    </div><//>
    ${found.listeners && html`<${Section} title="Ports and contexts" open=${false}><${Ports} listeners=${found.listeners} contexts=${found.contexts} /><//>`}
    <${Section} title="Definitions" open=${false}><${Allowed} role="administrator" task="export and import definitions"><${Definitions} /><//><//>
  `}<//>`;
}
