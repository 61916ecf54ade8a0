/** The user who is logged in: tags, and what they allow. */
import { Facts, Loaded } from "../../components/parts.js";
import { api } from "../../core/api.js";
import { html } from "../../core/html.js";
import { usePoll } from "../../core/poll.js";
import { hasRole, logOut } from "../../core/session.js";
import { useStore } from "../../core/store.js";
import { vhosts } from "../../core/vhosts.js";

const TASKS = [
  ["administrator", "Manage users, permissions, virtual hosts, definitions and limits"],
  ["monitoring", "List all virtual hosts, and see all connections, consumers and the node"],
  ["policymaker", "Set policies and parameters, also global ones"],
  ["management", "See and change what is in the virtual hosts below, as far as permissions go"],
];

export function OwnUser() {
  const poll = usePoll((signal) => api.get("whoami", { signal }), []);
  const { names } = useStore(vhosts);
  const allowed = TASKS.filter(([role]) => hasRole(role)).map(([, task]) => task);
  return html`<h1>Your user</h1><${Loaded} poll=${poll}>${(user) => html`
    <${Facts} items=${[["Name", user.name], ["Tags", user.tags.join(", ")], ["Virtual hosts", names.join(", ") || "none"]]} />
    <p>You may:</p><ul>${allowed.map((task) => html`<li key=${task}>${task}</li>`)}</ul>
    <button type="button" onClick=${() => logOut()}>Log out of this page</button>
  `}<//>`;
}
