/** Messages of a queue or a stream, as they wait: filter, read, replay, edit, move and delete. */
import { act, confirm } from "../../components/notices.js";
import { Loaded, Section } from "../../components/parts.js";
import { api, path } from "../../core/api.js";
import { number } from "../../core/format.js";
import { html, useEffect, useState } from "../../core/html.js";
import { changeMessages } from "../../core/message_actions.js";
import { usePoll } from "../../core/poll.js";
import { link, setQuery, useRoute } from "../../core/router.js";
import { MessageCard } from "./message_card.js";
import { MessageFilter, filterOf } from "./message_filter.js";

/** Actions on the chosen messages. */
function Chosen({ vhost, queue, messages, chosen, choose }) {
  const ids = messages.filter((each) => chosen.has(each.id)).map((each) => each.id);
  const run = async (action) => {
    if (await act((text) => text, () => changeMessages(vhost, queue, action, { ids }))) choose(new Set());
  };
  const remove = async () => {
    const sure = await confirm({ title: "Delete the messages?", text: `${number(ids.length)} messages will be lost.`, action: "Delete chosen" });
    if (sure) await run("delete");
  };
  const all = ids.length === messages.length;
  return html`<div class="controls">
    <button type="button" onClick=${() => choose(new Set(all ? [] : messages.map((each) => each.id)))}>${all ? "Choose none" : "Choose all on this page"}</button>
    <span role="status">${number(ids.length)} chosen</span>
    ${messages.some((each) => each.dead_letter) && html`<button type="button" disabled=${!ids.length} onClick=${() => run("replay")}>Replay chosen</button>`}
    <button type="button" class="danger" disabled=${!ids.length} onClick=${remove}>Delete chosen</button>
  </div>`;
}

function Messages({ vhost, queue, page }) {
  const { query } = useRoute();
  const [chosen, choose] = useState(new Set());
  useEffect(() => choose(new Set()), [JSON.stringify(query)]);
  const ready = page.messages.filter((each) => each.state === "ready");
  const select = (id) => (wanted) => {
    const next = new Set(chosen);
    if (wanted) next.add(id);
    else next.delete(id);
    choose(next);
  };
  return html`
    ${ready.length > 0 && html`<${Chosen} vhost=${vhost} queue=${queue} messages=${ready} chosen=${chosen} choose=${choose} />`}
    ${page.messages.length ? html`<ul class="cards">${page.messages.map((each) => html`<${MessageCard} key=${each.id} vhost=${vhost} queue=${queue} message=${each} open=${page.messages.length === 1}
      chosen=${chosen.has(each.id)} select=${each.state === "ready" ? select(each.id) : undefined} />`)}</ul>` : html`<p class="empty">There are no such messages.</p>`}
    <div class="pager"><span role="status">${number(page.messages.length)} messages on this page; ${number(page.scanned)} of ${number(page.total)} looked at</span>
      ${query.after && html`<button type="button" onClick=${() => setQuery({ after: undefined })}>First page</button>`}
      ${page.next && html`<button type="button" onClick=${() => setQuery({ after: page.next })}>Next page</button>`}</div>`;
}

export function BrowseMessages({ vhost, queue }) {
  const { query } = useRoute();
  const type = usePoll((signal) => api.get(path`queues/${vhost}/${queue}`, { query: { columns: "type" }, signal }), [vhost, queue]);
  const asked = filterOf(query);
  const poll = usePoll((signal) => api.get(path`warren/queues/${vhost}/${queue}/messages`, { query: { limit: 50, ...asked }, signal }), [vhost, queue, JSON.stringify(asked)]);
  const filtered = Object.keys(asked).some((name) => name !== "after");
  return html`<h1>Messages in ${queue}</h1>
    <p class="links"><a href=${link`queues/${vhost}/${queue}`}>Queue</a> ${type.data?.type !== "stream" && html`<a href=${link`dead-letters/${vhost}/${queue}`}>Dead letters by cause</a>`}</p>
    <${Section} title="Filter" open=${filtered}><${MessageFilter} stream=${type.data?.type === "stream"} /><//>
    <${Loaded} poll=${poll}>${(page) => html`<${Messages} vhost=${vhost} queue=${queue} page=${page} />`}<//>`;
}
