/** Permissions and topic permissions, of one user in all virtual hosts or of all users in one. */
import { Form, useVhostField } from "../../components/form.js";
import { RemoveButton } from "../../components/remove_button.js";
import { ListTable } from "../../components/table.js";
import { api, exchangePart, path } from "../../core/api.js";
import { html } from "../../core/html.js";
import { usePoll } from "../../core/poll.js";
import { link } from "../../core/router.js";

const OBJECT = {
  user: { id: "object", title: "Virtual host", sort: "vhost", always: true, cell: (row) => html`<a href=${link`vhosts/${row.vhost}`}>${row.vhost}</a>` },
  vhost: { id: "object", title: "User", sort: "user", always: true, cell: (row) => html`<a href=${link`users/${row.user}`}>${row.user}</a>` },
};
const PATTERNS = ["configure", "write", "read"].map((id) => ({ id, title: id[0].toUpperCase() + id.slice(1), sort: id, cell: (row) => html`<code>${row[id]}</code>` }));
const KINDS = {
  permissions: { caption: "Permissions", columns: PATTERNS, empty: "There are none: access is refused." },
  "topic-permissions": {
    caption: "Topic permissions",
    columns: [{ id: "exchange", title: "Exchange", sort: "exchange", cell: (row) => row.exchange || "(default)" }, ...PATTERNS.slice(1)],
    empty: "There are none: every routing key is allowed.",
  },
};

/** owner: "user" or "vhost", whose name is `name`. kind: "permissions" or "topic-permissions". */
function List({ owner, name, kind }) {
  const { caption, columns, empty } = KINDS[kind];
  const remove = {
    id: "remove", title: "Action", always: true, needs: [],
    cell: (row) => html`<${RemoveButton} title="Clear" label=${`Clear ${kind.replace("-", " ")} of ${row.user} in ${row.vhost}`} question="Clear the permissions?"
      text=${kind === "permissions" ? `${row.user} will no longer be able to use virtual host ${row.vhost}.` : `All topic permissions of ${row.user} in virtual host ${row.vhost} will be cleared, so that every routing key is allowed.`}
      remove=${() => api.delete(path`${kind}/${row.vhost}/${row.user}`)} done=${`The ${kind.replace("-", " ")} of ${row.user} in ${row.vhost} are cleared.`} />`,
  };
  return html`<${ListTable} id=${kind} whole plain caption=${caption} path=${`${owner}s/` + path`${name}/${kind}`} columns=${[OBJECT[owner], ...columns, remove]}
    rowKey=${(row) => `${row.user}\n${row.vhost}\n${row.exchange}`} rowText=${(row) => (owner === "user" ? row.vhost : row.user)} empty=${empty} />`;
}

/** Fields that name the user and the virtual host: that which the view does not name. */
function useSubject(owner, name) {
  const vhost = useVhostField();
  const users = usePoll(async (signal) => (owner === "user" ? [name] : (await api.get("users", { query: { columns: "name" }, signal })).map((each) => each.name)), [owner, name]);
  const user = { name: "user", label: "User", type: "select", options: users.data || [], value: users.data?.[0] };
  return { fields: owner === "user" ? [vhost] : [user], subject: (values) => (owner === "user" ? { user: name, vhost: values.vhost } : { user: values.user, vhost: name }) };
}

function SetPermissions({ owner, name }) {
  const { fields, subject } = useSubject(owner, name);
  const all = [
    ...fields,
    ...["configure", "write", "read"].map((each) => ({ name: each, label: `${each[0].toUpperCase() + each.slice(1)} regexp`, value: ".*" })),
  ];
  const submit = (values) => {
    const { user, vhost } = subject(values);
    return api.put(path`permissions/${vhost}/${user}`, { configure: values.configure, write: values.write, read: values.read });
  };
  return html`<${Form} fields=${all} action="Set permission" submit=${submit} done=${(values) => `Permissions of ${subject(values).user} in ${subject(values).vhost} are set.`} />`;
}

function SetTopicPermissions({ owner, name }) {
  const { fields, subject } = useSubject(owner, name);
  const all = [
    ...fields,
    { name: "exchange", label: "Exchange", value: "amq.topic", required: true, help: "A topic exchange, or amq.default." },
    { name: "write", label: "Write regexp", value: ".*" },
    { name: "read", label: "Read regexp", value: ".*" },
  ];
  const submit = (values) => {
    const { user, vhost } = subject(values);
    return api.put(path`topic-permissions/${vhost}/${user}`, { exchange: exchangePart(values.exchange), write: values.write, read: values.read });
  };
  return html`<${Form} fields=${all} action="Set topic permission" submit=${submit} done=${(values) => `Topic permissions of ${subject(values).user} in ${subject(values).vhost} are set.`} />`;
}

export function Permissions({ owner, name }) {
  return html`<${List} owner=${owner} name=${name} kind="permissions" /><h3>Set permission</h3><${SetPermissions} owner=${owner} name=${name} />`;
}

export function TopicPermissions({ owner, name }) {
  return html`<${List} owner=${owner} name=${name} kind="topic-permissions" /><h3>Set topic permission</h3><${SetTopicPermissions} owner=${owner} name=${name} />`;
}
