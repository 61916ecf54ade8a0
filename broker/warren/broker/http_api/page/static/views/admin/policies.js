/** Policies and operator policies: the lists, and forms that add one. */
import { Allowed } from "../../components/allowed.js";
import { Arguments, Section } from "../../components/parts.js";
import { ListTable } from "../../components/table.js";
import { path } from "../../core/api.js";
import { number } from "../../core/format.js";
import { html } from "../../core/html.js";
import { settings } from "../../core/settings.js";
import { useStore } from "../../core/store.js";
import { PolicyForm } from "./policy_form.js";
import { APPLY_TO, OPERATOR_POLICIES, POLICIES } from "./policy_kinds.js";

const TITLES = new Map(APPLY_TO);

function columns(kind) {
  return [
    { id: "name", title: "Name", sort: "name", always: true, needs: ["name", "vhost"], cell: (row) => html`<a href=${kind.link(row)}>${row.name}</a>` },
    { id: "vhost", title: "Virtual host", sort: "vhost" },
    { id: "pattern", title: "Pattern", sort: "pattern", cell: (row) => html`<code>${row.pattern}</code>` },
    { id: "apply-to", title: "Apply to", sort: "apply-to", cell: (row) => TITLES.get(row["apply-to"]) ?? row["apply-to"] },
    { id: "definition", title: "Definition", cell: (row) => html`<${Arguments} value=${row.definition} />` },
    { id: "priority", title: "Priority", sort: "priority", number: true, cell: (row) => number(row.priority) },
  ];
}

function Kind({ kind, open }) {
  const { vhost } = useStore(settings);
  const where = vhost ? `${kind.api}/` + path`${vhost}` : kind.api;
  return html`<${Section} title=${kind.many}>
    <${ListTable} id=${kind.api} plain caption=${kind.many} path=${where} columns=${columns(kind)} rowKey=${(row) => `${row.vhost}\n${row.name}`} empty="There are none." />
  <//>
  <${Section} title=${`Add ${kind.title === "Policy" ? "a policy" : "an operator policy"}`} open=${open}>
    <${Allowed} role=${kind.role} task=${`set ${kind.many.toLowerCase()}`}><${PolicyForm} kind=${kind} /><//>
  <//>`;
}

export function Policies() {
  return html`<h1>Policies</h1>
    <p class="place">A policy sets arguments of all queues and exchanges whose names match; an operator policy limits what policies and clients may set.</p>
    <${Kind} kind=${POLICIES} open=${false} /><${Kind} kind=${OPERATOR_POLICIES} open=${false} />`;
}
