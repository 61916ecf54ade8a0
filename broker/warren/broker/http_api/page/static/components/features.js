/** Features of queues and exchanges in RabbitMQ's letters, such as D, TTL and DLX. */
import { text } from "../core/format.js";
import { html } from "../core/html.js";
import { link } from "../core/router.js";

/** Letters of the arguments that have some, and their meaning. */
const LETTERS = {
  "alternate-exchange": ["AE", "Exchange for messages that cannot be routed"],
  "x-message-ttl": ["TTL", "Messages expire after a time (ms)"],
  "x-expires": ["Exp", "The queue is deleted when it is unused for a time (ms)"],
  "x-max-length": ["Lim", "Greatest number of messages"],
  "x-max-length-bytes": ["Lim B", "Greatest size of all messages"],
  "x-delivery-limit": ["DlL", "Most deliveries of a message"],
  "x-overflow": ["Ovfl", "What happens when the queue is full"],
  "x-dead-letter-exchange": ["DLX", "Exchange of dead letters"],
  "x-dead-letter-routing-key": ["DLK", "Routing key of dead letters"],
  "x-queue-master-locator": ["ML", "Node of the queue"],
  "x-queue-leader-locator": ["LL", "Node of the leader"],
  "x-max-priority": ["Pri", "Highest priority"],
  "x-single-active-consumer": ["SAC", "One consumer at a time"],
  "x-consumer-disconnected-timeout": ["CDT", "Wait for a consumer whose node is gone (ms)"],
  "x-delayed-retry-type": ["DRT", "Which messages are retried later"],
  "x-delayed-retry-min": ["DRm", "Shortest delay of a retry (ms)"],
  "x-delayed-retry-max": ["DRM", "Longest delay of a retry (ms)"],
};
/** Shown elsewhere: as the type of the queue. */
const UNLETTERED = ["x-queue-type"];

/** Returns [letters, meaning] of each feature, in RabbitMQ's order. */
function featuresOf(row) {
  const found = [];
  if (row.durable) found.push(["D", "Durable"]);
  if (row.auto_delete) found.push(["AD", "Auto-delete"]);
  if (row.internal) found.push(["I", "Internal: only other exchanges publish to it"]);
  const given = row.arguments || {};
  for (const [name, [letters, meaning]] of Object.entries(LETTERS))
    if (given[name] !== undefined && given[name] !== false) found.push([letters, `${meaning}: ${name} = ${text(given[name])}`]);
  const others = Object.entries(given).filter(([name]) => !LETTERS[name] && !UNLETTERED.includes(name));
  if (others.length) found.push(["Args", others.map(([name, value]) => `${name} = ${text(value)}`).join("\n")]);
  return found;
}

export function Features({ row }) {
  const owner = row.owner_pid_details?.name;
  return html`<span class="features">
    ${row.exclusive && html`<abbr title=${`Exclusive to the connection ${owner || ""}`}>${owner ? html`<a href=${link`connections/${owner}`}>Excl</a>` : "Excl"}</abbr>`}
    ${featuresOf(row).map(([letters, meaning]) => html`<abbr key=${letters} title=${meaning}>${letters}</abbr>`)}
    ${row.policy && html`<abbr title=${`Policy ${row.policy}`}>Pol</abbr>`}
    ${row.operator_policy && html`<abbr title=${`Operator policy ${row.operator_policy}`}>OpPol</abbr>`}
  </span>`;
}
