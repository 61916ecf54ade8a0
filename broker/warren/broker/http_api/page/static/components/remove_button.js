/** Buttons that remove something after a question. */
import { html } from "../core/html.js";
import { act, confirm } from "./notices.js";

/**
 * title: of the button. label: its name for people who hear the page, if `title` alone does not say what it removes.
 * question, text: of the dialog. remove(): does it. done: text of the notice. leave: address to go to then.
 */
export function RemoveButton({ title, label, question, text, remove, done, leave }) {
  const onClick = async () => {
    if (await confirm({ title: question, text, action: title })) await act(done, remove, leave);
  };
  return html`<button type="button" class="danger" aria-label=${label} onClick=${onClick}>${title}</button>`;
}
