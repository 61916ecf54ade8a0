/** Users: the list, and a form that adds one. */
import { Form } from "../../components/form.js";
import { Section } from "../../components/parts.js";
import { ListTable } from "../../components/table.js";
import { api, path } from "../../core/api.js";
import { yesNo } from "../../core/format.js";
import { html } from "../../core/html.js";
import { usePoll } from "../../core/poll.js";
import { link } from "../../core/router.js";
import { passwordFields, tagsField, userOf } from "./user_fields.js";

function columns(vhostsOf) {
  return [
    { id: "name", title: "Name", sort: "name", always: true, cell: (row) => html`<a href=${link`users/${row.name}`}>${row.name}</a>` },
    { id: "tags", title: "Tags", sort: "tags", cell: (row) => row.tags.join(", ") },
    { id: "vhosts", title: "May open virtual hosts", needs: ["name"], cell: (row) => vhostsOf.get(row.name)?.join(", ") ?? html`<span class="alarm">none</span>` },
    { id: "password", title: "Has a password", needs: ["password_hash"], cell: (row) => yesNo(row.password_hash) },
    { id: "limits", title: "Limits", hidden: true, cell: (row) => Object.entries(row.limits || {}).map(([name, value]) => `${name}: ${value}`).join(", ") },
  ];
}

function AddUser() {
  const fields = [{ name: "name", label: "Username", required: true }, ...passwordFields({}), tagsField()];
  const submit = async (values) => api.put(path`users/${values.name}`, await userOf(values.name, values));
  return html`<${Form} fields=${fields} action="Add user" submit=${submit} done=${(values) => `User ${values.name} is added. Set permissions, so that it may open a virtual host.`} />`;
}

export function Users() {
  const permissions = usePoll((signal) => api.get("permissions", { query: { columns: "user,vhost" }, signal }), []);
  const vhostsOf = new Map();
  for (const { user, vhost } of permissions.data || []) vhostsOf.set(user, [...(vhostsOf.get(user) || []), vhost]);
  return html`<h1>Users</h1>
    <${ListTable} id="users" routed caption="Users" path="users" columns=${columns(vhostsOf)} rowKey=${(row) => row.name} />
    <${Section} title="Add a user" open=${false}><${AddUser} /><//>`;
}
