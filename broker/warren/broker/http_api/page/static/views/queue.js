/** One queue or stream: its counts, charts, consumers, bindings, messages and actions. */
import { BindQueueForm, Bindings } from "../components/bindings.js";
import { Chart, RangeChoice, messageRates, queuedMessages, useRange } from "../components/chart.js";
import { Consumers } from "../components/consumers.js";
import { Features } from "../components/features.js";
import { ConnectionLink, PolicyLink } from "../components/links.js";
import { MessageCounts } from "../components/message_counts.js";
import { GetForm, PublishForm, ReadStreamForm } from "../components/messages.js";
import { Arguments, Facts, Loaded, Section, State } from "../components/parts.js";
import { QueueLinks } from "../components/queue_links.js";
import { api, path } from "../core/api.js";
import { bytes, number, percent, rate } from "../core/format.js";
import { html } from "../core/html.js";
import { usePoll } from "../core/poll.js";
import { samples } from "../core/settings.js";
import { DeleteForm, MoveForm, PurgeForm } from "./queue_actions.js";

const table = (value) => (Object.keys(value || {}).length ? html`<${Arguments} value=${value} />` : "");

function Overview({ row }) {
  const owner = row.owner_pid_details?.name;
  const stream = row.type === "stream";
  return html`<${RangeChoice} />
    <div class="charts">
      ${stream ? html`<${Chart} title="Messages" format=${number} lines=${[{ label: "Total", details: row.messages_details }]} />`
        : html`<${Chart} title="Queued messages" format=${number} lines=${queuedMessages(row)} />`}
      <${Chart} title="Message rates" format=${rate} lines=${messageRates(row.message_stats)} />
    </div>
    ${!stream && html`<${MessageCounts} row=${row} />`}
    <${Facts} items=${[
      ["Type", row.type], ["Features", html`<${Features} row=${row} />`], ["State", html`<${State} value=${row.state} />`],
      ["Messages", stream ? number(row.messages) : ""],
      ["Policy", row.policy && html`<${PolicyLink} vhost=${row.vhost} name=${row.policy} />`], ["Operator policy", row.operator_policy && html`<${PolicyLink} kind="operator-policies" vhost=${row.vhost} name=${row.operator_policy} />`], ["Effective policy", table(row.effective_policy_definition)],
      ["Arguments", table(row.arguments)], ["Exclusive to", owner ? html`<${ConnectionLink} name=${owner} />` : ""],
      ["Consumers", number(row.consumers)], ["Consumer capacity", row.consumers ? percent(row.consumer_capacity) : ""],
      ["Active consumer", row.single_active_consumer_tag], ["Delivery limit", number(row.delivery_limit)], ["Memory", bytes(row.memory)],
      ["Readers", row.readers ? number(Object.values(row.readers).reduce((sum, each) => sum + each, 0)) : ""], ["Segments", number(row.segments)],
    ]} />`;
}

/** What only queues have, not streams: their messages can be taken. */
function QueueMessages({ vhost, name, row }) {
  return html`<${Section} title="Get messages" open=${false}><${GetForm} vhost=${vhost} queue=${name} /><//>
    <${Section} title="Move messages" open=${false}><${MoveForm} vhost=${vhost} name=${name} row=${row} /><//>
    <${Section} title="Purge" open=${false}><${PurgeForm} vhost=${vhost} name=${name} row=${row} /><//>`;
}

export function QueueView({ vhost, name }) {
  const range = useRange();
  const poll = usePoll((signal) => api.get(path`queues/${vhost}/${name}`, { query: samples(range, "lengths", "msg_rates"), signal }), [vhost, name, range]);
  return html`<h1>Queue ${name}</h1><p class="place">in virtual host ${vhost}</p><${Loaded} poll=${poll}>${(row) => html`
    <${QueueLinks} vhost=${vhost} name=${name} type=${row.type} />
    <${Section} title="Overview"><${Overview} row=${row} /><//>
    <${Section} title=${`Consumers (${number(row.consumer_details.length)})`}><${Consumers} of="queue" consumers=${row.consumer_details} /><//>
    <${Section} title="Bindings">
      <${Bindings} where=${path`queues/${vhost}/${name}/bindings`} incoming />
      <h3>Add a binding to this queue</h3><${BindQueueForm} vhost=${vhost} queue=${name} />
    <//>
    <${Section} title="Publish message" open=${false}><${PublishForm} vhost=${vhost} exchange="" queue=${name} /><//>
    ${row.type === "stream" ? html`<${Section} title="Read messages" open=${false}><${ReadStreamForm} vhost=${vhost} queue=${name} /><//>` : html`<${QueueMessages} vhost=${vhost} name=${name} row=${row} />`}
    <${Section} title="Delete" open=${false}><${DeleteForm} vhost=${vhost} name=${name} row=${row} /><//>
  `}<//>`;
}
