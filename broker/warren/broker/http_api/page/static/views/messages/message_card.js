/** One message of a queue: its payload, properties and headers, and forms that edit, replay and move it. */
import { Form, argumentsOf, rowsOf } from "../../components/form.js";
import { exchangeTitle } from "../../components/links.js";
import { act } from "../../components/notices.js";
import { Arguments, Facts } from "../../components/parts.js";
import { RemoveButton } from "../../components/remove_button.js";
import { bytes, number, when, yesNo } from "../../core/format.js";
import { html, useState } from "../../core/html.js";
import { changeMessages } from "../../core/message_actions.js";
import { link } from "../../core/router.js";

const EDITABLE = ["app_id", "content_encoding", "content_type", "correlation_id", "priority", "reply_to", "timestamp", "type"];
const TARGETS = [["queue", "to the queue in which it died"], ["exchange", "to the exchange where it was published before"]];
const isEditable = (header) => !/^(warren-|x-)/.test(header) && header !== "CC" && header !== "BCC";

/** Returns what has to change to make one object of another: null removes a member. */
function changes(before, after) {
  const removed = Object.keys(before).filter((name) => !(name in after)).map((name) => [name, null]);
  const set = Object.entries(after).filter(([name, value]) => JSON.stringify(before[name]) !== JSON.stringify(value));
  return Object.fromEntries([...removed, ...set]);
}

const chosen = (from, accepts) => Object.fromEntries(Object.entries(from || {}).filter(([name]) => accepts(name)));

function EditForm({ vhost, queue, message, close }) {
  const headers = chosen(message.properties.headers, isEditable);
  const properties = chosen(message.properties, (name) => EDITABLE.includes(name));
  const whole = !message.payload_truncated;
  const fields = [
    ...(whole ? [{ name: "payload", label: `Payload (${message.payload_encoding === "base64" ? "base64" : "text"})`, type: "textarea", value: message.payload }] : []),
    { name: "headers", label: "Headers", type: "arguments", value: rowsOf(headers) },
    { name: "properties", label: "Properties", type: "arguments", value: rowsOf(properties), presets: EDITABLE.map((name) => [name, name, ["priority", "timestamp"].includes(name) ? "Number" : "String"]) },
    { name: "target", label: "Publish it", type: "select", value: "queue", options: TARGETS },
  ];
  const submit = async (values) => {
    const edit = { headers: changes(headers, argumentsOf(values.headers)), properties: changes(properties, argumentsOf(values.properties)) };
    if (whole && values.payload !== message.payload) Object.assign(edit, { payload: values.payload, payload_encoding: message.payload_encoding });
    const found = await changeMessages(vhost, queue, "replay", { ids: [message.id], edit, to_exchange: values.target === "exchange" });
    close();
    return found;
  };
  return html`<h3>Edit and replay</h3>
    ${!whole && html`<p class="empty">The payload is longer than what is shown: choose a greater size in the filter to edit it.</p>`}
    <${Form} fields=${fields} action="Replay edited message" submit=${submit} done=${(_, text) => text} />`;
}

function MoveForm({ vhost, queue, message, close }) {
  const fields = [
    { name: "kind", label: "Move to", type: "select", value: "queue", options: [["queue", "a queue"], ["exchange", "an exchange"]] },
    { name: "queue", label: "Queue", required: true, shown: ({ kind }) => kind === "queue" },
    { name: "exchange", label: "Exchange", required: true, shown: ({ kind }) => kind === "exchange" },
    { name: "key", label: "Routing key", value: message.routing_key, shown: ({ kind }) => kind === "exchange" },
  ];
  const submit = async (values) => {
    const target = values.kind === "queue" ? { queue: values.queue } : { exchange: values.exchange, routing_key: values.key };
    const found = await changeMessages(vhost, queue, "move", { ids: [message.id], ...target });
    close();
    return found;
  };
  return html`<h3>Move</h3><${Form} fields=${fields} action="Move message" submit=${submit} done=${(_, text) => text} />`;
}

function Actions({ vhost, queue, message }) {
  const [form, setForm] = useState("");
  const toggle = (name) => setForm(form === name ? "" : name);
  const properties = { vhost, queue, message, close: () => setForm("") };
  return html`<div class="buttons">
    ${message.dead_letter && html`<button type="button" onClick=${() => act((text) => text, () => changeMessages(vhost, queue, "replay", { ids: [message.id] }))}>Replay</button>
      <button type="button" aria-expanded=${form === "edit"} onClick=${() => toggle("edit")}>Edit and replay …</button>`}
    <button type="button" aria-expanded=${form === "move"} onClick=${() => toggle("move")}>Move …</button>
    <${RemoveButton} title="Delete message" question="Delete the message?" text="It will be lost." remove=${() => changeMessages(vhost, queue, "delete", { ids: [message.id] })} done="The message is deleted." />
  </div>
  ${form === "edit" && html`<${EditForm} ...${properties} />`}${form === "move" && html`<${MoveForm} ...${properties} />`}`;
}

function deathOf({ dead_letter: letter }) {
  if (!letter) return "";
  return `${letter.reason} in ${letter.queue}${letter.error ? `: ${letter.error}` : ""}`;
}

/** Facts of a message, which the line of a folded card does not show. */
function Details({ vhost, message }) {
  const { headers, message_id: id, ...properties } = message.properties;
  const { consumer } = message;
  return html`<${Facts} items=${[
    ["Message id", id && html`<a href=${link`stories/${vhost}/${id}`}>${id} (its story)</a>`],
    ["Exchange", exchangeTitle(message.exchange)], ["Routing key", message.routing_key],
    ["Cause of death", deathOf(message)], ["Last death", when(message.dead_letter?.last_death)],
    ["Redelivered", yesNo(message.redelivered)], ["Persistent", yesNo(message.persistent)],
    ["Deliveries", message.delivery_count ? number(message.delivery_count) : ""],
    ["Held by", consumer && `${consumer.consumer_tag || "basic.get"} of ${consumer.user} on ${consumer.channel}`],
    ["Due", when(message.due_at)], ["Expires", when(message.expires_at)], ["Offset", message.offset !== undefined && message.state === "stored" ? number(message.offset) : ""], ["Stored", when(message.stored_at)],
    ["Properties", Object.keys(properties).length ? html`<${Arguments} value=${properties} />` : ""],
    ["Headers", headers && Object.keys(headers).length ? html`<${Arguments} value=${headers} />` : ""],
  ]} />
  <pre tabindex="0" aria-label="Payload">${message.payload || "(empty)"}${message.payload_truncated ? "\n…" : ""}</pre>`;
}

/** A message that unfolds. select(chosen): called when it is chosen for an action on several; without it, it cannot be chosen. */
export function MessageCard({ vhost, queue, message, open, chosen: isChosen, select }) {
  const [shown, setShown] = useState(open);
  const title = message.properties.message_id || `(no message id)`;
  return html`<li class="card">
    ${select && html`<input type="checkbox" aria-label=${`Choose message ${title}`} checked=${isChosen} onChange=${(event) => select(event.target.checked)} />`}
    <details open=${open} onToggle=${(event) => setShown(event.target.open)}>
      <summary><b>${title}</b> <span class="kind">${exchangeTitle(message.exchange)} → ${message.routing_key}</span> <span class="kind">${bytes(message.payload_bytes)}</span>
        ${message.dead_letter && html` <span class="alarm">${deathOf(message)}</span>`} <code class="preview">${message.payload.slice(0, 120)}</code></summary>
      ${shown && html`<${Details} vhost=${vhost} message=${message} />${message.state === "ready" && html`<${Actions} vhost=${vhost} queue=${queue} message=${message} />`}`}
    </details>
  </li>`;
}
