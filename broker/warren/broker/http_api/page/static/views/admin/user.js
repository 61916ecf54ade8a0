/** One user: tags, permissions, limits, change and deletion. */
import { Form } from "../../components/form.js";
import { Facts, Loaded, Section } from "../../components/parts.js";
import { RemoveButton } from "../../components/remove_button.js";
import { api, path } from "../../core/api.js";
import { yesNo } from "../../core/format.js";
import { html } from "../../core/html.js";
import { usePoll } from "../../core/poll.js";
import { remember, session } from "../../core/session.js";
import { USER_LIMITS, limitsText } from "./limit_kinds.js";
import { Permissions, TopicPermissions } from "./permissions.js";
import { passwordFields, tagsField, userOf } from "./user_fields.js";

function Change({ user }) {
  const submit = async (values) => {
    await api.put(path`users/${user.name}`, await userOf(user.name, values));
    // Otherwise the next request would be refused, and log the user out.
    if (values.kind === "password" && user.name === session.value.user?.name) remember(user.name, values.password);
  };
  return html`<${Form} fields=${[...passwordFields({ keep: true }), tagsField(user.tags.join(", "))]} action="Update user" submit=${submit} done=${() => `User ${user.name} is changed.`} />`;
}

export function UserView({ user: name }) {
  const poll = usePoll((signal) => api.get(path`users/${name}`, { signal }), [name]);
  return html`<h1>User ${name}</h1><${Loaded} poll=${poll}>${(user) => html`
    <${Section} title="Overview">
      <${Facts} items=${[["Tags", user.tags.join(", ") || "none"], ["Has a password", yesNo(user.password_hash)], ["Limits", html`<a href="#/limits">${limitsText(user.limits, USER_LIMITS)}</a>`]]} />
    <//>
    <${Section} title="Permissions"><${Permissions} owner="user" name=${name} /><//>
    <${Section} title="Topic permissions" open=${false}><${TopicPermissions} owner="user" name=${name} /><//>
    <${Section} title="Update this user" open=${false}><${Change} user=${user} /><//>
    <${Section} title="Delete this user" open=${false}>
      <${RemoveButton} title="Delete user" question="Delete the user?" text=${`${name} will no longer be able to log in, and its permissions will be lost.`}
        remove=${() => api.delete(path`users/${name}`)} done=${`User ${name} is deleted.`} leave="#/users" />
    <//>
  `}<//>`;
}
