/** Parts of views that need a tag which the user may lack. */
import { html } from "../core/html.js";
import { hasRole, session } from "../core/session.js";
import { useStore } from "../core/store.js";

/** Shows `children` to users with the tag, and a sentence to others. task: what the tag is needed for, such as "add users". */
export function Allowed({ role, task, children }) {
  useStore(session);
  return hasRole(role) ? children : html`<p class="empty">To ${task}, your user needs the tag ${role}.</p>`;
}
