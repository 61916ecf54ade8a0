/** Numbers and sizes of the messages of a queue, by their states. */
import { bytes, number } from "../core/format.js";
import { html } from "../core/html.js";

const STATES = [
  ["Total", "messages", "message_bytes"],
  ["Ready", "messages_ready", "message_bytes_ready"],
  ["Unacked", "messages_unacknowledged", "message_bytes_unacknowledged"],
  ["Delayed", "messages_delayed", undefined],
  ["Dead-lettering", "messages_dlx", "message_bytes_dlx"],
  ["In memory", "messages_ram", "message_bytes_ram"],
  ["Persistent", "messages_persistent", "message_bytes_persistent"],
];

export function MessageCounts({ row }) {
  const shown = STATES.filter(([, count]) => row[count] !== undefined);
  return html`<div class="scroll counts" tabindex="0" role="region" aria-label="Numbers of messages"><table>
    <caption class="unseen">Numbers and sizes of messages</caption>
    <thead><tr><td></td>${shown.map(([title]) => html`<th key=${title} scope="col" class="number">${title}</th>`)}</tr></thead>
    <tbody>
      <tr><th scope="row">Messages</th>${shown.map(([title, count]) => html`<td key=${title} class="number">${number(row[count])}</td>`)}</tr>
      <tr><th scope="row">Size of bodies</th>${shown.map(([title, , size]) => html`<td key=${title} class="number">${bytes(row[size])}</td>`)}</tr>
    </tbody>
  </table></div>`;
}
