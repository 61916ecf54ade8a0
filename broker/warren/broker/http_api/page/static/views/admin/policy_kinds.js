/** Policies and operator policies: their paths, and the keys that their definitions may have. */
import { link } from "../../core/router.js";

export const APPLY_TO = [
  ["all", "Exchanges and queues"], ["exchanges", "Exchanges"], ["queues", "Queues and streams"],
  ["classic_queues", "Classic queues"], ["quorum_queues", "Quorum queues"], ["streams", "Streams"],
];

/** Letters of what a policy applies to: exchanges, classic queues, quorum queues, streams. */
const APPLIES = { all: "ecqs", exchanges: "e", queues: "cqs", classic_queues: "c", quorum_queues: "q", streams: "s" };

/** Keys of definitions: key, title, type, value at first, meaning, and letters of what they are for: e, c, q, s as in APPLIES. */
const KEYS = [
  ["message-ttl", "Message TTL", "Number", "", "Milliseconds after which a message expires", "cq"],
  ["expires", "Auto expire", "Number", "", "Milliseconds without use after which the queue is deleted", "cq"],
  ["max-length", "Max length", "Number", "", "Most messages", "cq"],
  ["max-length-bytes", "Max length bytes", "Number", "", "Most bytes of message bodies, or of a stream", "cqs"],
  ["overflow", "Overflow", "String", "reject-publish", "When the queue is full: drop-head, reject-publish or reject-publish-dlx", "cq"],
  ["dead-letter-exchange", "Dead letter exchange", "String", "", "Exchange for messages that are rejected, expire or are too many", "cq"],
  ["dead-letter-routing-key", "Dead letter routing key", "String", "", "Their routing key instead of their own", "cq"],
  ["dead-letter-strategy", "Dead letter strategy", "String", "at-least-once", "at-most-once or at-least-once", "q"],
  ["delivery-limit", "Delivery limit", "Number", "20", "Returns to the queue after which a message is dead-lettered", "cq"],
  ["consumer-timeout", "Consumer timeout", "Number", "", "Milliseconds within which consumers have to acknowledge", "cq"],
  ["alternate-exchange", "Alternate exchange", "String", "", "Exchange for messages that no binding takes", "e"],
  ["max-age", "Max age", "String", "7D", "Age after which segments of a stream are deleted, such as 12h or 7D", "s"],
  ["stream-max-segment-size-bytes", "Segment size", "Number", "", "Bytes of a segment of a stream", "s"],
];
const OPERATOR_KEYS = ["message-ttl", "expires", "max-length", "max-length-bytes", "overflow", "delivery-limit"];

/** Returns the keys of a kind of policies that fit what a policy applies to. */
export const keysFor = (kind, applyTo) => kind.keys.filter(([, , , , , letters]) => [...APPLIES[applyTo]].some((letter) => letters.includes(letter)));

/** Kinds of policies: address of one, path of the API, name, field of queues and exchanges, tag, keys. */
export const POLICIES = { link: (row) => link`policies/${row.vhost}/${row.name}`, api: "policies", title: "Policy", many: "Policies", field: "policy", role: "policymaker", keys: KEYS };
export const OPERATOR_POLICIES = {
  link: (row) => link`operator-policies/${row.vhost}/${row.name}`, api: "operator-policies", title: "Operator policy", many: "Operator policies", field: "operator_policy", role: "administrator",
  keys: KEYS.filter(([key]) => OPERATOR_KEYS.includes(key)),
};
