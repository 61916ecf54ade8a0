/** Arguments that exchanges of each type know: [name, title, type, value, hint]. */

const ALTERNATE = ["alternate-exchange", "Alternate exchange", "String", "", "Exchange for messages that cannot be routed otherwise."];
const OF_TYPE = {
  "x-delayed-message": [["x-delayed-type", "Delayed type", "String", "direct", "Type by which the exchange routes a message when its delay (header x-delay, ms) is over."]],
  "x-consistent-hash": [
    ["hash-header", "Hash header", "String", "", "Header to hash instead of the routing key."],
    ["hash-property", "Hash property", "String", "message_id", "Property to hash instead of the routing key: message_id, correlation_id or timestamp."],
  ],
  "x-message-deduplication": [
    ["x-cache-size", "Cache size", "Number", "1000", "Most values of the header x-deduplication-header that are remembered."],
    ["x-cache-ttl", "Cache TTL", "Number", "60000", "How long a value is remembered, in ms."],
  ],
  "x-recent-history": [["x-recent-history-length", "History length", "Number", "20", "How many messages a queue gets when it is bound."]],
};

export const exchangeArguments = (type) => [...(OF_TYPE[type] || []), ALTERNATE];
