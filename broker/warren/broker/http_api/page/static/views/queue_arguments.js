/** Arguments that queues of each type know: [name, title, type, value, hint]. */

const TTL = ["x-message-ttl", "Message TTL", "Number", "", "How long a message may stay in the queue, in ms."];
const EXPIRES = ["x-expires", "Auto expire", "Number", "", "How long the queue may be unused until it is deleted, in ms."];
const MAX_LENGTH = ["x-max-length", "Max length", "Number", "", "Greatest number of ready messages; what happens then is the overflow behaviour."];
const MAX_BYTES = ["x-max-length-bytes", "Max length bytes", "Number", "", "Greatest size of the bodies of all ready messages; of a stream, of all its segments."];
const DLX = ["x-dead-letter-exchange", "Dead letter exchange", "String", "", "Exchange that gets messages that expire, overflow or are rejected."];
const DLK = ["x-dead-letter-routing-key", "Dead letter routing key", "String", "", "Routing key of dead letters; without it, they keep their own."];
const SAC = ["x-single-active-consumer", "Single active consumer", "Boolean", "true", "One consumer gets all messages; another takes over when it ends."];
const CONSUMER_TIMEOUT = ["x-consumer-timeout", "Consumer timeout", "Number", "", "How long a consumer may take to acknowledge a message, in ms. Then its channel is closed."];
const overflow = (others) => ["x-overflow", "Overflow behaviour", "String", "reject-publish", `drop-head (the oldest message leaves), ${others}.`];

const ARGUMENTS = {
  classic: [
    TTL, EXPIRES, MAX_LENGTH, MAX_BYTES, overflow("reject-publish, or reject-publish-dlx"), DLX, DLK, SAC, CONSUMER_TIMEOUT,
    ["x-max-priority", "Maximum priority", "Number", "10", "Highest priority of messages, at most 255; messages of a higher one are delivered first."],
  ],
  quorum: [
    TTL, EXPIRES, MAX_LENGTH, MAX_BYTES, overflow("or reject-publish"), DLX, DLK, SAC, CONSUMER_TIMEOUT,
    ["x-delivery-limit", "Delivery limit", "Number", "20", "How often a message may come back until it is a dead letter; -1 for no limit."],
    ["x-dead-letter-strategy", "Dead letter strategy", "String", "at-least-once", "at-most-once, or at-least-once, which needs the overflow behaviour reject-publish."],
    ["x-delayed-retry-type", "Delayed retry type", "String", "failed", "Which messages wait until they are delivered again: all, failed, returned or disabled."],
    ["x-delayed-retry-min", "Delayed retry min", "Number", "1000", "Shortest wait, in ms; there is no delayed retry without it."],
    ["x-delayed-retry-max", "Delayed retry max", "Number", "60000", "Longest wait, in ms."],
  ],
  stream: [
    MAX_BYTES,
    ["x-max-age", "Max age", "String", "7D", "How long messages are kept: a number with Y, M, D, h, m or s."],
    ["x-stream-max-segment-size-bytes", "Max segment size", "Number", "100000000", "Size of a segment file, in bytes; old messages are deleted a segment at a time."],
    ["x-stream-filter-size-bytes", "Filter size", "Number", "16", "Size of the filter of each chunk, 16 to 255 bytes."],
  ],
};

/** type: empty for the default type of the virtual host. */
export const queueArguments = (type) => ARGUMENTS[type] || ARGUMENTS.classic;
