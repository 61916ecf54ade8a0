/** Search box for objects of all kinds. */
import { api } from "../core/api.js";
import { html, useEffect, useRef, useState } from "../core/html.js";
import { navigate } from "../core/router.js";
import { hasRole } from "../core/session.js";
import { SEARCHES } from "../registry.js";

const TYPING_MS = 200;
const MOST_OF_A_KIND = 6;

async function find(text, signal) {
  const kinds = SEARCHES.filter((kind) => hasRole(kind.role));
  const answers = await Promise.allSettled(
    kinds.map((kind) => api.get(kind.path, { query: { name: text, page: 1, page_size: MOST_OF_A_KIND, columns: kind.columns }, signal })),
  );
  return kinds.flatMap((kind, index) => {
    const found = answers[index].value;
    const rows = Array.isArray(found) ? found.filter((row) => row.name.toLowerCase().includes(text.toLowerCase())) : found?.items || [];
    return rows.slice(0, MOST_OF_A_KIND).map((row) => ({
      kind: kind.title, name: row.name || "(default)", vhost: row.vhost === row.name ? "" : row.vhost, address: kind.link(row),
    }));
  });
}

export function Search() {
  const [text, setText] = useState("");
  const [found, setFound] = useState(null);
  const [active, setActive] = useState(0);
  const box = useRef(null);
  useEffect(() => {
    setFound(null);
    if (!text.trim()) return undefined;
    const controller = new AbortController();
    const timer = setTimeout(async () => {
      const rows = await find(text.trim(), controller.signal);
      if (controller.signal.aborted) return;
      setActive(0);
      setFound(rows);
    }, TYPING_MS);
    return () => {
      clearTimeout(timer);
      controller.abort();
    };
  }, [text]);
  const open = (row) => {
    setText("");
    box.current.blur();
    navigate(row.address);
  };
  const onKeyDown = (event) => {
    if (event.key === "Escape") {
      setText("");
      box.current.blur();
    } else if (found?.length && (event.key === "ArrowDown" || event.key === "ArrowUp")) {
      event.preventDefault();
      setActive((active + (event.key === "ArrowDown" ? 1 : found.length - 1)) % found.length);
    } else if (found?.length && event.key === "Enter") open(found[active]);
  };
  const shown = found !== null;
  return html`<div class="search" role="search">
    <input ref=${box} id="search" type="search" role="combobox" aria-label="Search everywhere" placeholder="Search everywhere ( / )" autocomplete="off"
      aria-expanded=${shown && found.length > 0} aria-controls="search-results" aria-activedescendant=${found?.length ? `search-${active}` : undefined}
      value=${text} onInput=${(event) => setText(event.target.value)} onKeyDown=${onKeyDown} />
    <ul id="search-results" role="listbox" aria-label="Objects that were found" hidden=${!shown || !found.length}>
      ${(found || []).map((row, index) => html`<li key=${row.address} id=${`search-${index}`} role="option" aria-selected=${index === active}
        onMouseDown=${(event) => { event.preventDefault(); open(row); }}>
        <span class="kind">${row.kind}</span> <b>${row.name}</b> ${row.vhost && html`<span class="kind">${row.vhost}</span>`}
      </li>`)}
    </ul>
    ${shown && !found.length && html`<p role="status" class="nothing">Nothing found</p>`}
  </div>`;
}
