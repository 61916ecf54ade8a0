/** Nodes of the broker: what they use of what they may, their facts, and charts of it. */
import { Chart } from "../components/chart.js";
import { Facts, Loaded } from "../components/parts.js";
import { api, path } from "../core/api.js";
import { bytes, duration, number } from "../core/format.js";
import { html } from "../core/html.js";
import { usePoll } from "../core/poll.js";
import { samples } from "../core/settings.js";

/** Share of a limit from which on the bar of a gauge warns. */
const HIGH = 0.8;

function Gauge({ title, value, limit, shown, alarm }) {
  const state = alarm ? "alarm" : limit && value >= limit * HIGH ? "high" : "fine";
  return html`<li class=${`gauge ${state}`}>
    <span class="kind">${title}</span> <b>${shown}</b>
    ${limit > 0 && html`<meter min="0" max=${limit} high=${limit * HIGH} optimum="0" value=${Math.min(value, limit)} aria-label=${title}>${shown}</meter>`}
    ${alarm && html`<strong class="alarm">Alarm: publishers are blocked</strong>`}
  </li>`;
}

function Gauges({ node }) {
  return html`<ul class="gauges">
    <${Gauge} title="File descriptors" value=${node.fd_used} limit=${node.fd_total} shown=${`${number(node.fd_used)} of ${number(node.fd_total)}`} />
    <${Gauge} title="Sockets" value=${node.sockets_used} limit=${node.sockets_total} shown=${`${number(node.sockets_used)} of ${number(node.sockets_total)}`} />
    <${Gauge} title="Memory" value=${node.mem_used} limit=${node.mem_limit} shown=${`${bytes(node.mem_used)}${node.mem_limit ? ` of ${bytes(node.mem_limit)}` : ""}`} alarm=${node.mem_alarm} />
    ${node.db_dir && html`<${Gauge} title="Disk space" shown=${`${bytes(node.disk_free)} free, ${bytes(node.disk_free_limit)} needed`} alarm=${node.disk_free_alarm} />`}
    <${Gauge} title="Uptime" shown=${duration(node.uptime)} />
  </ul>`;
}

/** Name of a use of memory, for people. */
const USES = { queue_procs: "Messages of queues", other_system: "Everything else" };

function Memory({ node }) {
  const poll = usePoll((signal) => api.get(path`nodes/${node.name}/memory`, { signal }), [node.name]);
  return html`<${Loaded} poll=${poll}>${({ memory }) => html`<${Facts} items=${Object.entries(memory)
    .filter(([, size]) => typeof size === "number" && size > 0)
    .map(([use, size]) => [USES[use] || use, bytes(size)])} />`}<//>`;
}

function Node({ node }) {
  return html`<div>
    <h3>${node.name}</h3>
    <${Gauges} node=${node} />
    <div class="charts">
      <${Chart} title="Memory" format=${bytes} lines=${[{ label: "Used", details: node.mem_used_details }]} />
      ${node.db_dir && html`<${Chart} title="Free disk space" format=${bytes} lines=${[{ label: "Free", details: node.disk_free_details }]} />`}
      <${Chart} title="Sockets and descriptors" format=${number} lines=${[{ label: "Sockets", details: node.sockets_used_details }, { label: "File descriptors", details: node.fd_used_details }]} />
    </div>
    <${Facts} items=${[
      ["Process", node.os_pid], ["Processors", number(node.processors)], ["Runs on", node.erlang_full_version], ["TLS library", node.crypto_lib_version],
      ["Behaves like", `RabbitMQ ${node.rabbitmq_version}`], ["Data folder", node.db_dir || "none: everything is in memory"], ["Log", node.log_files.join(", ")],
      ["Mechanisms", node.auth_mechanisms.map((each) => each.name).join(", ")],
    ]} />
    <h3>Memory</h3><${Memory} node=${node} />
  </div>`;
}

export function Nodes({ range }) {
  const poll = usePoll((signal) => api.get("nodes", { query: samples(range, "node_stats"), signal }), [range]);
  return html`<${Loaded} poll=${poll}>${(nodes) => nodes.map((node) => html`<${Node} key=${node.name} node=${node} />`)}<//>`;
}
