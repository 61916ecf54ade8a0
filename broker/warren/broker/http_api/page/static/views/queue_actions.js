/** Actions on one queue: move its messages, purge it, delete it. */
import { Form } from "../components/form.js";
import { act, confirm } from "../components/notices.js";
import { api, path } from "../core/api.js";
import { number } from "../core/format.js";
import { html } from "../core/html.js";

/** Moves all messages that are ready now; the broker does it in parts, and answers where to go on. Returns how many moved. */
async function moveAll(vhost, name, to, most) {
  if (!most) throw new Error("The queue has no ready messages.");
  let moved = 0;
  let failed = [];
  let after;
  do {
    const part = await api.post(path`warren/queues/${vhost}/${name}/messages/move`, { queue: to, all: true, limit: Math.min(most - moved, 10000), ...(after ? { after } : {}) });
    moved += part.done;
    failed = [...failed, ...part.failed];
    after = part.finished ? null : part.next;
  } while (after && moved < most);
  if (failed.length) throw new Error(`${number(moved)} messages were moved; ${number(failed.length)} stayed: ${failed[0].reason}`);
  return moved;
}

export function MoveForm({ vhost, name, row }) {
  const fields = [{ name: "to", label: "To queue", type: "name", kind: "queues", vhost, required: true, help: "In the same virtual host. No message is lost, whatever happens meanwhile." }];
  return html`<${Form} fields=${fields} action="Move messages" submit=${({ to }) => moveAll(vhost, name, to, row.messages_ready)}
    done=${({ to }, moved) => `${number(moved)} messages are in ${to} now.`}
    ask=${({ to }) => ({ title: "Move the messages?", text: `All ${number(row.messages_ready)} ready messages of ${name} go to ${to}.`, action: "Move messages" })} />`;
}

export function PurgeForm({ vhost, name, row }) {
  const purge = async () => {
    const sure = await confirm({ title: "Purge the queue?", text: `${number(row.messages_ready)} ready messages of ${name} will be lost.`, action: "Purge messages" });
    if (sure) await act(`Queue ${name} is purged.`, () => api.delete(path`queues/${vhost}/${name}/contents`));
  };
  return html`<p>Removes all messages that are ready; those that consumers hold stay.</p>
    <button type="button" class="danger" disabled=${!row.messages_ready} onClick=${purge}>Purge messages</button>`;
}

export function DeleteForm({ vhost, name, row }) {
  const fields = [
    { name: "empty", label: "Only if empty", type: "checkbox" },
    { name: "unused", label: "Only if unused", type: "checkbox", help: "Refuse while it has consumers." },
  ];
  return html`<${Form} fields=${fields} action="Delete queue" danger leave="#/queues" done=${() => `Queue ${name} is deleted.`}
    submit=${(values) => api.delete(path`queues/${vhost}/${name}`, { query: { "if-empty": values.empty, "if-unused": values.unused } })}
    ask=${() => ({ title: "Delete the queue?", text: `${name} and its ${number(row.messages)} messages will be lost.`, action: "Delete queue" })} />`;
}
