/** Story of a message and of those that caused it and that it caused, from captured events. */
import { Loaded, Section } from "../../components/parts.js";
import { RowsTable } from "../../components/table.js";
import { api, path } from "../../core/api.js";
import { number, when } from "../../core/format.js";
import { html } from "../../core/html.js";
import { usePoll } from "../../core/poll.js";
import { link, navigate } from "../../core/router.js";
import { settings } from "../../core/settings.js";
import { useStore } from "../../core/store.js";
import { vhosts } from "../../core/vhosts.js";
import { SequenceDiagram } from "./sequence_diagram.js";

const MOST_DRAWN = 300;

function Choice({ vhost, id = "" }) {
  const { names } = useStore(vhosts);
  const submit = (event) => {
    event.preventDefault();
    navigate(link`stories/${event.target.elements.vhost.value}/${event.target.elements.id.value}`);
  };
  return html`<form class="controls" onSubmit=${submit}>
    <label>Of virtual host <select name="vhost">${names.map((each) => html`<option key=${each} value=${each} selected=${each === vhost}>${each}</option>`)}</select></label>
    <label>Message id <input name="id" defaultValue=${id} required maxlength="255" spellcheck=${false} /></label>
    <button type="submit">Show the story</button>
  </form>`;
}

export function Stories() {
  const { vhost } = useStore(settings);
  return html`<h1>Story of a message</h1>
    <p>Who published it, where it was routed, who got it, and how it ended; with the messages that caused it and that it caused. The broker tells it from captured events:
      start it with <code>--capture-events</code>, or give the App a <code>Capture()</code>.</p>
    <${Choice} vhost=${vhost || "/"} />`;
}

function Told({ vhost, id, found }) {
  const numberOf = new Map(found.messages.map((each, index) => [each.id, index]));
  const name = (message) => (numberOf.has(message) ? `M${numberOf.get(message) + 1}` : message);
  const began = found.steps[0]?.at;
  const timeOf = (step) => `+${((step.at - began) / 1e6).toFixed(3)} s`;
  const drawn = found.steps.slice(0, MOST_DRAWN);
  const messages = [
    { id: "name", title: "Name", cell: (row) => name(row.id) },
    { id: "id", title: "Message id", cell: (row) => (row.id === id ? html`<b>${row.id}</b>` : html`<a href=${link`stories/${vhost}/${row.id}`}>${row.id}</a>`) },
    { id: "cause", title: "Caused by", cell: (row) => row.cause && name(row.cause) },
  ];
  const steps = [
    { id: "after", title: "After", cell: timeOf },
    { id: "message", title: "Message", cell: (row) => name(row.message_id) },
    { id: "source", title: "From" }, { id: "target", title: "To", cell: (row) => (row.target === row.source ? "" : row.target) }, { id: "text", title: "Step" },
  ];
  const rows = found.steps.map((step, index) => ({ ...step, index }));
  const searched = `${number(found.batches)} ${found.batches === 1 ? "batch" : "batches"} of stream ${found.stream} searched${found.complete ? "" : ", not all"}`;
  if (!rows.length) return html`<p class="empty">No event of this message is there: ${searched}.</p>`;
  return html`
    <p class="place">It began ${when(began / 1000)}. ${searched}.</p>
    <${Section} title="Sequence">
      <${SequenceDiagram} participants=${found.participants} steps=${drawn} numberOf=${numberOf} timeOf=${timeOf} />
      ${drawn.length < rows.length && html`<p class="empty">The first ${drawn.length} of ${number(rows.length)} steps are drawn; all are in the table.</p>`}
    <//>
    <${Section} title=${`Messages (${number(found.messages.length)})`}><${RowsTable} plain id="story-messages" rowText=${(row) => row.id} filterLabel="Filter" caption="Messages" columns=${messages} rows=${found.messages} rowKey=${(row) => row.id} /><//>
    <${Section} title="Steps"><${RowsTable} plain id="story-steps" rowText=${(row) => `${row.source} ${row.target} ${row.text}`} filterLabel="Filter" caption="Steps" columns=${steps} rows=${rows} rowKey=${(row) => row.index} /><//>`;
}

export function StoryView({ vhost, id }) {
  const poll = usePoll((signal) => api.get(path`warren/stories/${vhost}/${id}`, { signal }), [vhost, id]);
  return html`<h1>Story of ${id}</h1><${Choice} vhost=${vhost} id=${id} />
    <${Loaded} poll=${poll}>${(found) => html`<${Told} vhost=${vhost} id=${id} found=${found} />`}<//>`;
}
