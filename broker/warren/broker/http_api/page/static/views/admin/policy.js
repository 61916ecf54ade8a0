/** One policy or operator policy: its definition, the queues and exchanges that it matches, change and deletion. */
import { Allowed } from "../../components/allowed.js";
import { ExchangeLink, QueueLink } from "../../components/links.js";
import { Arguments, Facts, Loaded, Section } from "../../components/parts.js";
import { RemoveButton } from "../../components/remove_button.js";
import { RowsTable } from "../../components/table.js";
import { api, path } from "../../core/api.js";
import { number } from "../../core/format.js";
import { html } from "../../core/html.js";
import { usePoll } from "../../core/poll.js";
import { PolicyForm } from "./policy_form.js";
import { APPLY_TO, OPERATOR_POLICIES, POLICIES } from "./policy_kinds.js";

const MOST_MATCHES = 200;
const TITLES = new Map(APPLY_TO);

/** Asks for queues or exchanges whose names the pattern fits. */
async function matches(objects, { vhost, pattern, name }, field, signal) {
  const query = { page: 1, page_size: MOST_MATCHES, name: pattern, use_regex: "true", columns: `name,type,${field}` };
  const found = await api.get(`${objects}/` + path`${vhost}`, { query, signal });
  const rows = found.items.filter((row) => row.name).map((row) => ({ ...row, objects, applies: row[field] === name, other: row[field] || "" }));
  return { rows, total: found.filtered_count };
}

function Matches({ kind, policy }) {
  const objects = { exchanges: ["exchanges"], all: ["queues", "exchanges"] }[policy["apply-to"]] || ["queues"];
  const poll = usePoll((signal) => Promise.all(objects.map((each) => matches(each, policy, kind.field, signal))), [policy.vhost, policy.name, policy.pattern, policy["apply-to"], kind]);
  const columns = [
    { id: "name", title: "Name", cell: (row) => html`<${row.objects === "queues" ? QueueLink : ExchangeLink} vhost=${policy.vhost} name=${row.name} />` },
    { id: "type", title: "Type", cell: (row) => `${row.type} ${row.objects === "queues" && row.type !== "stream" ? "queue" : row.objects === "exchanges" ? "exchange" : ""}` },
    { id: "applies", title: "Applies", cell: (row) => (row.applies ? "yes" : row.other ? `no: ${row.other} does` : "no: not to this type") },
  ];
  return html`<${Loaded} poll=${poll}>${(found) => {
    const rows = found.flatMap((each) => each.rows).sort((left, right) => right.applies - left.applies);
    const more = found.reduce((sum, each) => sum + Math.max(each.total - MOST_MATCHES, 0), 0);
    return html`<${RowsTable} plain id="policy-matches" caption="Matches" columns=${columns} rows=${rows} rowKey=${(row) => `${row.objects}\n${row.name}`} empty="No name fits the pattern." />
      ${more > 0 && html`<p class="empty">${number(more)} more names fit the pattern.</p>`}`;
  }}<//>`;
}

function PolicyPage({ kind, vhost, name }) {
  const where = `${kind.api}/` + path`${vhost}/${name}`;
  const poll = usePoll((signal) => api.get(where, { signal }), [where]);
  return html`<h1>${kind.title} ${name}</h1><p class="place">in virtual host ${vhost}</p><${Loaded} poll=${poll}>${(policy) => html`
    <${Section} title="Overview"><${Facts} items=${[
      ["Pattern", html`<code>${policy.pattern}</code>`], ["Apply to", TITLES.get(policy["apply-to"])], ["Priority", number(policy.priority)],
      ["Definition", html`<${Arguments} value=${policy.definition} />`],
    ]} /><//>
    <${Section} title="Matches"><${Matches} kind=${kind} policy=${policy} /><//>
    <${Allowed} role=${kind.role} task=${`change ${kind.many.toLowerCase()}`}>
      <${Section} title=${`Update this ${kind.title.toLowerCase()}`} open=${false}><${PolicyForm} kind=${kind} policy=${policy} /><//>
      <${Section} title=${`Delete this ${kind.title.toLowerCase()}`} open=${false}>
        <${RemoveButton} title=${`Delete ${kind.title.toLowerCase()}`} question=${`Delete the ${kind.title.toLowerCase()}?`} text=${`What ${name} sets will no longer apply to queues and exchanges.`}
          remove=${() => api.delete(where)} done=${`${kind.title} ${name} is deleted.`} leave="#/policies" />
      <//>
    <//>
  `}<//>`;
}

export const PolicyView = (properties) => html`<${PolicyPage} kind=${POLICIES} ...${properties} />`;
export const OperatorPolicyView = (properties) => html`<${PolicyPage} kind=${OPERATOR_POLICIES} ...${properties} />`;
