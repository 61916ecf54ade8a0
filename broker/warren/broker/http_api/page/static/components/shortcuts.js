/** Keys: / searches, g and a letter opens a tab, ? lists the keys. */
import { html, useEffect, useRef, useState } from "../core/html.js";
import { navigate } from "../core/router.js";

const SEQUENCE_MS = 1500;

/** tabs: the tabs that the user sees, each with `key`, `title` and `address`. */
export function Shortcuts({ tabs }) {
  const [listed, setListed] = useState(false);
  const dialog = useRef(null);
  const begun = useRef(0);
  useEffect(() => {
    function onKeyDown(event) {
      const typing = event.target.closest?.("input, textarea, select, dialog");
      if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
      if (performance.now() - begun.current < SEQUENCE_MS) {
        begun.current = 0;
        const tab = tabs.find((each) => each.key === event.key);
        if (tab) {
          event.preventDefault();
          navigate(tab.address);
          return;
        }
      }
      if (event.key === "g") begun.current = performance.now();
      else if (event.key === "/") {
        event.preventDefault();
        document.getElementById("search")?.focus();
      } else if (event.key === "?") setListed(true);
    }
    addEventListener("keydown", onKeyDown);
    return () => removeEventListener("keydown", onKeyDown);
  }, [tabs]);
  useEffect(() => {
    if (listed) dialog.current?.showModal();
  }, [listed]);
  if (!listed) return null;
  const keys = [["/", "Search everywhere"], ...tabs.filter((tab) => tab.key).map((tab) => [`g ${tab.key}`, tab.title]), ["?", "Show the keys"], ["Esc", "Close"]];
  return html`<dialog ref=${dialog} aria-labelledby="keys-title" onClose=${() => setListed(false)}>
    <h2 id="keys-title">Keys</h2>
    <dl class="facts">${keys.map(([key, meaning]) => html`<div key=${key}><dt><kbd>${key}</kbd></dt><dd>${meaning}</dd></div>`)}</dl>
    <div class="buttons"><button type="button" onClick=${() => dialog.current.close()}>Close</button></div>
  </dialog>`;
}
