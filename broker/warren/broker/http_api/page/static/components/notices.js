/** Notices about what was done, and what failed; dialogs that ask before something is lost. */
import { html, useEffect, useRef } from "../core/html.js";
import { refresh } from "../core/poll.js";
import { navigate } from "../core/router.js";
import { Store, useStore } from "../core/store.js";

const NOTICE_SECONDS = 8;
const notices = new Store({ list: [] });
let last = 0;

function add(kind, text) {
  const id = ++last;
  notices.set({ list: [...notices.value.list.slice(-4), { id, kind, text }] });
  if (kind === "done") setTimeout(() => dismiss(id), NOTICE_SECONDS * 1000);
}

function dismiss(id) {
  notices.set({ list: notices.value.list.filter((each) => each.id !== id) });
}

/** Shows a notice of something that failed. */
export function report(error) {
  add("failed", error.message);
}

/**
 * Does something, and shows a notice of it: `done` is its text, or makes it of the result. Returns whether it succeeded.
 *
 * `leave` is the address to go to then, for example because what the view shows is gone.
 */
export async function act(done, operation, leave) {
  let result;
  try {
    result = await operation();
  } catch (error) {
    report(error);
    return false;
  }
  add("done", typeof done === "function" ? done(result) : done);
  if (leave) navigate(leave);
  else refresh();
  return true;
}

export function Notices() {
  const { list } = useStore(notices);
  return html`<div class="notices" role="region" aria-label="Notices">
    ${list.map(
      ({ id, kind, text }) => html`<p key=${id} class=${kind} role=${kind === "done" ? "status" : "alert"}>
        <span>${text}</span><button type="button" aria-label="Dismiss" onClick=${() => dismiss(id)}>×</button>
      </p>`,
    )}
  </div>`;
}

const question = new Store({ asked: null });

/** Asks before something that cannot be undone; resolves to whether it is to be done. */
export function confirm({ title, text, action }) {
  return new Promise((resolve) => question.set({ asked: { title, text, action, resolve } }));
}

export function ConfirmDialog() {
  const { asked } = useStore(question);
  const dialog = useRef(null);
  useEffect(() => {
    if (asked) dialog.current?.showModal();
  }, [asked]);
  if (!asked) return null;
  const answer = (value) => {
    dialog.current?.close();
    question.set({ asked: null });
    asked.resolve(value);
  };
  return html`<dialog ref=${dialog} aria-labelledby="confirm-title" onCancel=${() => answer(false)}>
    <h2 id="confirm-title">${asked.title}</h2>
    <p>${asked.text}</p>
    <div class="buttons">
      <button type="button" autofocus onClick=${() => answer(false)}>Cancel</button>
      <button type="button" class="danger" onClick=${() => answer(true)}>${asked.action}</button>
    </div>
  </dialog>`;
}
