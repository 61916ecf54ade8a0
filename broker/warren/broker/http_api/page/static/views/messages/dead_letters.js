/** Dead letters of a queue in groups of one cause, with replay and deletion of a group. */
import { QueueLink, exchangeTitle } from "../../components/links.js";
import { act, confirm } from "../../components/notices.js";
import { Loaded } from "../../components/parts.js";
import { RowsTable } from "../../components/table.js";
import { api, path } from "../../core/api.js";
import { number, when } from "../../core/format.js";
import { html } from "../../core/html.js";
import { changeMessages } from "../../core/message_actions.js";
import { usePoll } from "../../core/poll.js";
import { link } from "../../core/router.js";

function Actions({ vhost, queue, group }) {
  const body = { filter: { group: group.group } };
  const replay = () => act((text) => text, () => changeMessages(vhost, queue, "replay", body));
  const remove = async () => {
    const sure = await confirm({ title: "Delete the dead letters?", text: `${number(group.count)} messages of this cause will be lost.`, action: "Delete all" });
    if (sure) await act((text) => text, () => changeMessages(vhost, queue, "delete", body));
  };
  return html`<div class="buttons">
    <a class="button" href=${link`messages/${vhost}/${queue}` + `?group=${encodeURIComponent(group.group)}`} aria-label=${`Show messages of cause ${group.group}`}>Show</a>
    <button type="button" aria-label=${`Replay all of cause ${group.group}`} onClick=${replay}>Replay all</button>
    <button type="button" class="danger" aria-label=${`Delete all of cause ${group.group}`} onClick=${remove}>Delete all</button>
  </div>`;
}

export function DeadLetters({ vhost, queue }) {
  const poll = usePoll((signal) => api.get(path`warren/queues/${vhost}/${queue}/dead-letters`, { signal }), [vhost, queue]);
  const columns = [
    { id: "cause", title: "Died in", sort: "queue", cell: (row) => html`<${QueueLink} vhost=${vhost} name=${row.queue} />` },
    { id: "count", title: "Messages", sort: "count", number: true, cell: (row) => number(row.count) },
    { id: "reason", title: "Reason", sort: "reason" },
    { id: "error", title: "Error", cell: (row) => row.example_error || row.error },
    { id: "type", title: "Type", sort: "type" },
    { id: "from", title: "Published to", cell: (row) => `${exchangeTitle(row.exchange)} → ${row.routing_key}` },
    { id: "first", title: "First", sort: "first_death", cell: (row) => when(row.first_death) },
    { id: "last", title: "Last", sort: "last_death", cell: (row) => when(row.last_death) },
    { id: "actions", title: "Actions", cell: (row) => html`<${Actions} vhost=${vhost} queue=${queue} group=${row} />` },
  ];
  return html`<h1>Dead letters in ${queue}</h1>
    <p class="links"><a href=${link`queues/${vhost}/${queue}`}>Queue</a> <a href=${link`messages/${vhost}/${queue}`}>All messages</a></p>
    <${Loaded} poll=${poll}>${(found) => html`
      <${RowsTable} plain id="causes" caption="Causes" columns=${columns} rows=${found.groups} rowKey=${(row) => row.group} rowText=${(row) => `${row.queue} ${row.reason} ${row.error} ${row.type}`} filterLabel="Filter" empty="There are no dead letters in this queue." />
      <p class="place">${number(found.scanned)} of ${number(found.total)} messages were looked at${found.other ? `; ${number(found.other)} are no dead letters, or of further causes` : ""}.</p>
    `}<//>`;
}
