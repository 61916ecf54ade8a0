/** Limits of virtual hosts and of users. */
import { Allowed } from "../../components/allowed.js";
import { Form, useVhostField } from "../../components/form.js";
import { Loaded, Section } from "../../components/parts.js";
import { RemoveButton } from "../../components/remove_button.js";
import { RowsTable } from "../../components/table.js";
import { api, path } from "../../core/api.js";
import { number } from "../../core/format.js";
import { html } from "../../core/html.js";
import { usePoll } from "../../core/poll.js";
import { link } from "../../core/router.js";
import { hasRole } from "../../core/session.js";
import { USER_LIMITS, VHOST_LIMITS } from "./limit_kinds.js";

/** owner: "vhost" or "user". title: its name for people. */
function List({ owner, title, kinds }) {
  const poll = usePoll((signal) => api.get(`${owner}-limits`, { signal }), [owner]);
  const columns = [
    { id: "owner", title, cell: (row) => html`<a href=${owner === "user" ? link`users/${row.owner}` : link`vhosts/${row.owner}`}>${row.owner}</a>` },
    { id: "limit", title: "Limit", cell: (row) => `${row.title} (${row.name})` },
    { id: "value", title: "Value", number: true, cell: (row) => number(row.value) },
    ...(hasRole("administrator") ? [{ id: "remove", title: "Action", cell: (row) => html`<${RemoveButton} title="Clear" label=${`Clear ${row.name} of ${row.owner}`} question="Clear the limit?" text=${`${row.title} of ${row.owner} will be without a limit.`}
      remove=${() => api.delete(`${owner}-limits/` + path`${row.owner}/${row.name}`)} done=${`The limit ${row.name} of ${row.owner} is cleared.`} />` }] : []),
  ];
  const rowsOf = (found) => found.flatMap((each) => kinds.filter(([name]) => each.value[name] !== undefined).map(([name, kind]) => ({ owner: each[owner], name, title: kind, value: each.value[name] })));
  return html`<${Loaded} poll=${poll}>${(found) => html`<${RowsTable} plain id=${`${owner}-limits`} rowText=${(row) => `${row.owner} ${row.name}`} caption=${`Limits: ${title}`} columns=${columns} rows=${rowsOf(found)} rowKey=${(row) => `${row.owner}\n${row.name}`} empty="There are no limits." />`}<//>`;
}

function SetLimit({ owner, field, kinds }) {
  const fields = [
    field,
    { name: "limit", label: "Limit", type: "select", value: kinds[0][0], options: kinds },
    { name: "value", label: "Value", type: "number", required: true, help: "-1 is no limit." },
  ];
  const submit = (values) => api.put(`${owner}-limits/` + path`${values[owner]}/${values.limit}`, { value: Number(values.value) });
  return html`<${Form} fields=${fields} action=${`Set limit of ${owner === "user" ? "user" : "virtual host"}`} submit=${submit} done=${(values) => `The limit ${values.limit} of ${values[owner]} is set.`} />`;
}

function UserLimits() {
  const users = usePoll((signal) => api.get("users", { query: { columns: "name" }, signal }), []);
  const names = (users.data || []).map((each) => each.name);
  return html`<${List} owner="user" title="User" kinds=${USER_LIMITS} /><h3>Set a limit</h3>
    <${SetLimit} owner="user" kinds=${USER_LIMITS} field=${{ name: "user", label: "User", type: "select", options: names, value: names[0] }} />`;
}

export function Limits() {
  const vhost = useVhostField();
  return html`<h1>Limits</h1>
    <${Section} title="Virtual hosts">
      <${List} owner="vhost" title="Virtual host" kinds=${VHOST_LIMITS} />
      <${Allowed} role="administrator" task="set limits"><h3>Set a limit</h3><${SetLimit} owner="vhost" field=${vhost} kinds=${VHOST_LIMITS} /><//>
    <//>
    <${Section} title="Users"><${Allowed} role="administrator" task="see and set limits of users"><${UserLimits} /><//><//>`;
}
