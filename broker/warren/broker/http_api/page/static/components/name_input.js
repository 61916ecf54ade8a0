/** Text field for the name of a queue or an exchange; it suggests those that exist. */
import { api, path } from "../core/api.js";
import { html, useEffect, useState } from "../core/html.js";

const TYPING_MS = 200;
const MOST = 20;

/** kind: queues or exchanges. vhost: their virtual host. The other properties are those of the input. */
export function NameInput({ kind, vhost, id, value, ...properties }) {
  const [names, setNames] = useState([]);
  useEffect(() => {
    if (!value || !vhost) return undefined;
    const controller = new AbortController();
    const timer = setTimeout(async () => {
      try {
        const query = { name: value, page: 1, page_size: MOST, columns: "name", disable_stats: "true" };
        const found = await api.get(kind === "queues" ? path`queues/${vhost}` : path`exchanges/${vhost}`, { query, signal: controller.signal });
        setNames(found.items.map((each) => each.name).filter(Boolean));
      } catch {
        // Without suggestions, the name can be typed.
      }
    }, TYPING_MS);
    return () => {
      clearTimeout(timer);
      controller.abort();
    };
  }, [kind, vhost, value]);
  return html`<input id=${id} type="text" list=${`${id}-names`} autocomplete="off" spellcheck=${false} value=${value} ...${properties} />
    <datalist id=${`${id}-names`}>${names.map((name) => html`<option key=${name} value=${name}></option>`)}</datalist>`;
}
