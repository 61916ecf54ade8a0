/** One channel: its rates, facts and consumers. */
import { Chart, RangeChoice, messageRates, useRange } from "../components/chart.js";
import { Consumers } from "../components/consumers.js";
import { ConnectionLink, shortName } from "../components/links.js";
import { Facts, Loaded, Section, State } from "../components/parts.js";
import { api, path } from "../core/api.js";
import { number, rate } from "../core/format.js";
import { html } from "../core/html.js";
import { usePoll } from "../core/poll.js";
import { SHORT_RANGES, samples } from "../core/settings.js";
import { Mode, prefetchOf } from "./channels.js";

export function ChannelView({ name }) {
  const range = useRange(SHORT_RANGES);
  const poll = usePoll((signal) => api.get(path`channels/${name}`, { query: samples(range, "msg_rates"), signal }), [name, range]);
  return html`<h1>Channel ${shortName(name)}</h1><${Loaded} poll=${poll}>${(row) => html`
    <p class="place">in virtual host ${row.vhost}</p>
    <${Section} title="Overview">
      <${RangeChoice} ranges=${SHORT_RANGES} />
      <div class="charts"><${Chart} title="Message rates" format=${rate} lines=${messageRates(row.message_stats)} /></div>
      <${Facts} items=${[
        ["Connection", html`<${ConnectionLink} name=${row.connection_details.name} />`], ["Number", row.number], ["User name", row.user],
        ["Mode", html`<${Mode} row=${row} words />`], ["State", html`<${State} value=${row.state} />`], ["Prefetch", prefetchOf(row) || "no limit"],
        ["Unacked messages", number(row.messages_unacknowledged)], ["Unconfirmed messages", number(row.messages_unconfirmed)],
        ["Uncommitted messages", number(row.messages_uncommitted)], ["Uncommitted acks", number(row.acks_uncommitted)],
      ]} />
    <//>
    <${Section} title=${`Consumers (${number(row.consumer_details.length)})`}><${Consumers} of="channel" consumers=${row.consumer_details} /><//>
  `}<//>`;
}
