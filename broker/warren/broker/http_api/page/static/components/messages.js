/** Forms that publish a message, get messages of a queue, and read those of a stream. */
import { api, exchangePart, path } from "../core/api.js";
import { text, yesNo } from "../core/format.js";
import { html, useState } from "../core/html.js";
import { saveFile } from "../core/save_file.js";
import { Form, argumentsOf } from "./form.js";
import { exchangeTitle } from "./links.js";
import { Arguments, Facts } from "./parts.js";

const PROPERTIES = ["content_type", "content_encoding", "correlation_id", "reply_to", "expiration", "message_id", "timestamp", "type", "user_id", "app_id", "priority"];
const PRESETS = PROPERTIES.map((name) => [name, name, ["timestamp", "priority"].includes(name) ? "Number" : "String"]);

/** Publishes to an exchange; `queue` names the queue if it is the default exchange. */
export function PublishForm({ vhost, exchange, queue }) {
  const fields = [
    ...(queue === undefined ? [{ name: "key", label: "Routing key" }] : []),
    { name: "delivery", label: "Delivery mode", type: "select", value: "2", options: [["2", "2 – persistent"], ["1", "1 – transient"]] },
    { name: "headers", label: "Headers", type: "arguments" },
    { name: "properties", label: "Properties", type: "arguments", presets: PRESETS },
    { name: "payload", label: "Payload", type: "textarea" },
    { name: "encoding", label: "Payload is", type: "select", value: "string", options: [["string", "text"], ["base64", "base64"]] },
  ];
  const submit = async (values) => {
    const found = await api.post(path`exchanges/${vhost}/${exchangePart(exchange)}/publish`, {
      routing_key: queue ?? values.key,
      payload: values.payload,
      payload_encoding: values.encoding,
      properties: { delivery_mode: Number(values.delivery), ...argumentsOf(values.properties), headers: argumentsOf(values.headers) },
    });
    if (!found.routed) throw new Error("The message was published, but no queue got it: no binding fits its routing key.");
  };
  return html`<${Form} fields=${fields} action="Publish message" submit=${submit} done=${() => "The message is published."} keep />`;
}

function download(message) {
  saveFile("payload", message.payload_encoding === "base64" ? Uint8Array.from(atob(message.payload), (letter) => letter.charCodeAt(0)) : message.payload);
}

const MOST_BYTES = 50000;

/** One message, as `get` or Warren's own path for browsing sends it. */
function Message({ message, number }) {
  const { headers, ...properties } = Array.isArray(message.properties) ? {} : message.properties;
  const cut = message.payload_truncated ?? false;
  return html`<article class="message" aria-label=${`Message ${number}`}>
    <h3>Message ${number}</h3>
    <${Facts} items=${[
      ["Offset", headers?.["x-stream-offset"]],
      ["Exchange", exchangeTitle(message.exchange)],
      ["Routing key", message.routing_key],
      ["Redelivered", yesNo(message.redelivered)],
      ["Still in the queue", text(message.message_count)],
      ["Properties", Object.keys(properties).length ? html`<${Arguments} value=${properties} />` : ""],
      ["Headers", headers ? html`<${Arguments} value=${headers} />` : ""],
      ["Payload", `${message.payload_bytes} bytes, ${message.payload_encoding === "base64" ? "base64" : "text"}${cut ? ", of which the beginning is shown" : ""}`],
    ]} />
    <pre tabindex="0">${message.payload}</pre>
    <button type="button" onClick=${() => download(message)}>Download payload</button>
  </article>`;
}

function Messages({ found, empty }) {
  if (!found) return null;
  if (!found.length) return html`<p class="empty">${empty}</p>`;
  return found.map((message, index) => html`<${Message} key=${index} message=${message} number=${index + 1} />`);
}

/** Reads messages without taking them, by Warren's own path. */
const browse = async (vhost, queue, query) => (await api.get(path`warren/queues/${vhost}/${queue}/messages`, { query: { truncate: MOST_BYTES, ...query } })).messages;

const LOOK = "look";
const MODES = [
  [LOOK, "Look only (nothing changes)"],
  ["ack_requeue_true", "Nack message, requeue (they stay)"],
  ["ack_requeue_false", "Automatic ack (they are removed)"],
  ["reject_requeue_true", "Reject, requeue (they stay)"],
  ["reject_requeue_false", "Reject, no requeue (dead letters)"],
];

export function GetForm({ vhost, queue }) {
  const [found, setFound] = useState(null);
  const taken = ({ mode }) => mode !== LOOK;
  const fields = [
    { name: "mode", label: "Ack mode", type: "select", value: LOOK, options: MODES, help: "Messages that are taken and stay are marked as redelivered." },
    { name: "encoding", label: "Encoding", type: "select", value: "auto", options: [["auto", "Text if it is UTF-8, else base64"], ["base64", "base64"]], shown: taken },
    { name: "count", label: "Messages", type: "number", value: "1", min: 1 },
  ];
  const submit = async ({ mode, encoding, count }) => {
    setFound(null);
    if (mode === LOOK) setFound(await browse(vhost, queue, { limit: count }));
    else setFound(await api.post(path`queues/${vhost}/${queue}/get`, { ackmode: mode, encoding, count: Number(count), truncate: MOST_BYTES }));
  };
  return html`<${Form} fields=${fields} action="Get messages" submit=${submit} done=${() => "The queue was read."} keep />
    <${Messages} found=${found} empty="The queue has no ready messages." />`;
}

export function ReadStreamForm({ vhost, queue }) {
  const [found, setFound] = useState(null);
  const fields = [
    { name: "from", label: "From", type: "select", value: "first", options: [["first", "the first message"], ["last", "the last chunk"], ["offset", "an offset"]] },
    { name: "offset", label: "Offset", type: "number", value: "0", min: 0, shown: ({ from }) => from === "offset" },
    { name: "count", label: "Messages", type: "number", value: "10", min: 1, max: 500 },
  ];
  const submit = async ({ from, offset, count }) => {
    setFound(null);
    setFound(await browse(vhost, queue, { offset: from === "offset" ? offset : from, limit: count }));
  };
  return html`<${Form} fields=${fields} action="Read messages" submit=${submit} done=${() => "The stream was read; nothing has changed."} keep />
    <${Messages} found=${found} empty="The stream has no messages from there on." />`;
}
