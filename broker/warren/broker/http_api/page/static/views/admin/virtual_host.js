/** One virtual host: charts, permissions, limits, tracing, change and deletion. */
import { Allowed } from "../../components/allowed.js";
import { Chart, RangeChoice, messageRates, queuedMessages } from "../../components/chart.js";
import { Form } from "../../components/form.js";
import { act } from "../../components/notices.js";
import { Facts, Loaded, Section } from "../../components/parts.js";
import { RemoveButton } from "../../components/remove_button.js";
import { api, path } from "../../core/api.js";
import { number, rate, yesNo } from "../../core/format.js";
import { html } from "../../core/html.js";
import { usePoll } from "../../core/poll.js";
import { samples, settings } from "../../core/settings.js";
import { useStore } from "../../core/store.js";
import { loadVhosts } from "../../core/vhosts.js";
import { VHOST_LIMITS, limitsText } from "./limit_kinds.js";
import { Permissions, TopicPermissions } from "./permissions.js";
import { vhostFields, vhostOf } from "./virtual_hosts.js";

function Tracing({ row }) {
  const set = (tracing) => act(`Tracing of ${row.name} is ${tracing ? "on" : "off"}.`, () => api.put(path`vhosts/${row.name}`, { tracing }));
  return html`<p>Tracing is ${row.tracing ? "on: copies of all messages go to the exchange amq.rabbitmq.trace" : "off"}.</p>
    <button type="button" onClick=${() => set(!row.tracing)}>${row.tracing ? "Stop tracing" : "Start tracing"}</button>`;
}

function Deletion({ row }) {
  const where = path`vhosts/${row.name}/deletion/protection`;
  const protect = () => act(`${row.name} is protected from deletion.`, () => api.post(where));
  const unprotect = () => act(`${row.name} is no longer protected from deletion.`, () => api.delete(where));
  const remove = async () => {
    await api.delete(path`vhosts/${row.name}`);
    await loadVhosts();
  };
  if (row.protected_from_deletion) return html`<p>The virtual host is protected from deletion.</p><button type="button" onClick=${unprotect}>Allow deletion</button>`;
  return html`<div class="buttons">
    <button type="button" onClick=${protect}>Protect from deletion</button>
    <${RemoveButton} title="Delete virtual host" question="Delete the virtual host?" text=${`All exchanges, queues, policies and permissions of ${row.name} and its ${number(row.messages ?? 0)} messages will be lost.`}
      remove=${remove} done=${`Virtual host ${row.name} is deleted.`} leave="#/vhosts" />
  </div>`;
}

function Change({ row }) {
  return html`<${Form} fields=${vhostFields(row)} action="Update virtual host" submit=${(values) => api.put(path`vhosts/${row.name}`, vhostOf(values))} done=${() => `Virtual host ${row.name} is changed.`} />`;
}

export function VirtualHostView({ vhost: name }) {
  const { range } = useStore(settings);
  const poll = usePoll((signal) => api.get(path`vhosts/${name}`, { query: samples(range, "lengths", "msg_rates"), signal }), [name, range]);
  const limits = usePoll((signal) => api.get(path`vhost-limits/${name}`, { signal }), [name]);
  return html`<h1>Virtual host ${name}</h1><${Loaded} poll=${poll}>${(row) => html`
    <${Section} title="Overview">
      <${RangeChoice} />
      <div class="charts">
        <${Chart} title="Queued messages" format=${number} lines=${queuedMessages(row)} />
        <${Chart} title="Message rates" format=${rate} lines=${messageRates(row.message_stats)} />
      </div>
      <${Facts} items=${[
        ["Description", row.description], ["Tags", row.tags.join(", ")], ["Default queue type", row.default_queue_type],
        ["State", Object.values(row.cluster_state || {}).join(", ")], ["Tracing", yesNo(row.tracing)], ["Protected from deletion", yesNo(row.protected_from_deletion)],
        ["Limits", html`<a href="#/limits">${limitsText(limits.data?.[0]?.value, VHOST_LIMITS)}</a>`],
      ]} />
    <//>
    <${Allowed} role="administrator" task="see permissions, and to change or delete the virtual host">
      <${Section} title="Permissions"><${Permissions} owner="vhost" name=${name} /><//>
      <${Section} title="Topic permissions" open=${false}><${TopicPermissions} owner="vhost" name=${name} /><//>
      <${Section} title="Tracing" open=${false}><${Tracing} row=${row} /><//>
      <${Section} title="Update this virtual host" open=${false}><${Change} row=${row} /><//>
      <${Section} title="Delete this virtual host" open=${false}><${Deletion} row=${row} /><//>
    <//>
  `}<//>`;
}
