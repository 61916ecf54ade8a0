/** Export and import of definitions: everything apart from messages. */
import { api, path, request } from "../core/api.js";
import { html, useRef, useState } from "../core/html.js";
import { saveFile } from "../core/save_file.js";
import { useStore } from "../core/store.js";
import { loadVhosts, vhosts } from "../core/vhosts.js";
import { act, confirm, report } from "./notices.js";

const KINDS = [
  ["users", "users"], ["vhosts", "virtual hosts"], ["permissions", "permissions"], ["policies", "policies"], ["parameters", "parameters"],
  ["queues", "queues"], ["exchanges", "exchanges"], ["bindings", "bindings"],
];
const whereOf = (vhost) => (vhost ? path`definitions/${vhost}` : "definitions");

function VhostChoice({ label, vhost, change }) {
  const { names } = useStore(vhosts);
  return html`<label>${label} <select value=${vhost} onChange=${(event) => change(event.target.value)}>
    <option value="">All</option>${names.map((name) => html`<option key=${name} value=${name}>${name}</option>`)}
  </select></label>`;
}

function Export() {
  const [vhost, setVhost] = useState("");
  const save = () => act("The definitions are saved as a file.", async () => {
    const found = await api.get(whereOf(vhost), { asText: true });
    const place = vhost.replace(/[^\w.-]+/g, "_");
    saveFile(`warren_${place && place + "_"}${new Date().toISOString().slice(0, 10)}.json`, found, "application/json");
  });
  return html`<h3>Export</h3><div class="controls"><${VhostChoice} label="Definitions of virtual host" vhost=${vhost} change=${setVhost} /><button type="button" onClick=${save}>Download definitions</button></div>`;
}

/** Returns what definitions contain as text, such as "2 users, 10 queues". */
function contents(content) {
  let found;
  try {
    found = JSON.parse(content);
  } catch {
    throw new Error("The file is not JSON.");
  }
  if (found === null || typeof found !== "object" || Array.isArray(found)) throw new Error("The file has no definitions: it is no JSON object.");
  const filled = KINDS.filter(([key]) => Array.isArray(found[key]) && found[key].length).map(([key, title]) => `${found[key].length} ${title}`);
  if (!filled.length) throw new Error("The file has no definitions.");
  return filled.join(", ");
}

function Import() {
  const [vhost, setVhost] = useState("");
  const file = useRef(null);
  const submit = async (event) => {
    event.preventDefault();
    let content;
    let what;
    try {
      content = await file.current.files[0].text();
      what = contents(content);
    } catch (error) {
      report(error);
      return;
    }
    const sure = await confirm({ title: "Import the definitions?", text: `${what} will be added${vhost ? ` to virtual host ${vhost}` : ""}; those that exist will be changed.`, action: "Import" });
    if (!sure) return;
    await act("The definitions are imported.", async () => {
      await request("POST", whereOf(vhost), { content });
      await loadVhosts();
    });
  };
  return html`<h3>Import</h3><form class="controls" onSubmit=${submit}>
    <label>File <input ref=${file} type="file" accept="application/json,.json" required /></label>
    <${VhostChoice} label="Into virtual host" vhost=${vhost} change=${setVhost} />
    <button type="submit">Upload definitions</button>
  </form>`;
}

export function Definitions() {
  return html`<p>Definitions are users, virtual hosts, permissions, policies, parameters, exchanges, queues and bindings, without messages. Those of one virtual host have no users and permissions.</p><${Export} /><${Import} />`;
}
