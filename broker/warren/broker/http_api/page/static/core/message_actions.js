/** Deletion, move and replay of messages that wait in a queue. */
import { api, path } from "./api.js";
import { refresh } from "./poll.js";

const DONE = { delete: "deleted", move: "moved", replay: "replayed" };

/**
 * Changes messages, which `body` selects by `ids` or `filter`; returns what was done as text.
 *
 * action: delete, move or replay. An error says how many messages stayed, and why.
 */
export async function changeMessages(vhost, queue, action, body) {
  const where = path`warren/queues/${vhost}/${queue}/messages/${action}`;
  const total = { done: 0, gone: 0, failed: [] };
  let after;
  for (;;) {
    // A request returns after a while, and says how to go on.
    const found = await api.post(where, after ? { ...body, after } : body);
    total.done += found.done;
    total.gone += found.gone;
    total.failed.push(...found.failed);
    if (found.finished || found.failed.length || body.ids) break;
    after = found.next;
  }
  const text = `${total.done} ${total.done === 1 ? "message" : "messages"} ${DONE[action]}${total.gone ? `, ${total.gone} no longer there` : ""}`;
  if (total.failed.length) {
    refresh();
    throw new Error(`${text}; ${total.failed.length} stayed: ${total.failed[0].reason}`);
  }
  return `${text}.`;
}
