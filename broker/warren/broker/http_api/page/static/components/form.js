/** Forms, which are described by their fields. */
import { html, useRef, useState } from "../core/html.js";
import { settings } from "../core/settings.js";
import { useStore } from "../core/store.js";
import { vhosts } from "../core/vhosts.js";
import { NameInput } from "./name_input.js";
import { act, confirm } from "./notices.js";

let forms = 0;

const TYPES = ["String", "Number", "Boolean", "JSON"];

/** Returns the value of an argument: { type, value } of its row. */
function parsed({ key, type, value }) {
  if (type === "String") return value;
  if (type === "Number") {
    if (value.trim() === "" || Number.isNaN(Number(value))) throw new Error(`${key}: "${value}" is no number`);
    return Number(value);
  }
  if (type === "Boolean") {
    if (value !== "true" && value !== "false") throw new Error(`${key}: write true or false`);
    return value === "true";
  }
  try {
    return JSON.parse(value);
  } catch {
    throw new Error(`${key}: "${value}" is not JSON`);
  }
}

/** Returns an object of the rows of an arguments field. */
export function argumentsOf(rows = []) {
  return Object.fromEntries(rows.filter((row) => row.key).map((row) => [row.key, parsed(row)]));
}

/** Returns the rows of an arguments field that show an object. */
export function rowsOf(value = {}) {
  return Object.entries(value).map(([key, each]) => {
    const type = { string: "String", number: "Number", boolean: "Boolean" }[typeof each] || "JSON";
    return { key, type, value: type === "JSON" ? JSON.stringify(each) : String(each) };
  });
}

function ArgumentRows({ label, rows = [], presets = [], change }) {
  const all = rows.length && !rows.at(-1).key ? rows : [...rows, { key: "", value: "", type: "String" }];
  const set = (index, changes) => change(all.map((row, place) => (place === index ? { ...row, ...changes } : row)));
  const add = ([key, , type, value = ""]) => change([...all.filter((row) => row.key && row.key !== key), { key, type, value }]);
  const hint = (key) => presets.find(([name]) => name === key)?.[4];
  return html`<fieldset class="argument-rows">
    <legend>${label}</legend>
    ${all.map((row, index) => html`<div key=${index}>
      <input type="text" aria-label=${`${label}: name ${index + 1}`} placeholder="name" value=${row.key} onInput=${(event) => set(index, { key: event.target.value })} />
      <input type="text" aria-label=${`${label}: value ${index + 1}`} placeholder="value" value=${row.value} onInput=${(event) => set(index, { value: event.target.value })} />
      <select aria-label=${`${label}: type ${index + 1}`} value=${row.type} onChange=${(event) => set(index, { type: event.target.value })}>
        ${TYPES.map((type) => html`<option key=${type} value=${type}>${type}</option>`)}
      </select>
      ${hint(row.key) && html`<small>${hint(row.key)}</small>`}
    </div>`)}
    ${presets.length > 0 && html`<p class="presets">Add ${presets.map((preset) => html`<button type="button" key=${preset[0]} title=${preset[0]} onClick=${() => add(preset)}>${preset[1]}</button>`)}</p>`}
  </fieldset>`;
}

/** Returns a property of a field that may depend on the values of the form. */
const dependent = (property, values) => (typeof property === "function" ? property(values) : property);

/** Returns the words of a text with commas between, without what is empty. */
export const wordsOf = (value) => value.split(",").map((word) => word.trim()).filter(Boolean);

function withWord(value, word) {
  const words = wordsOf(value);
  return (words.includes(word) ? words : [...words, word]).join(", ");
}

function Field({ field, id, value, values, change }) {
  const { type = "text", label, options = [], required, help } = field;
  if (type === "arguments") return html`<${ArgumentRows} label=${label} rows=${value} presets=${dependent(field.presets, values)} change=${change} />`;
  const set = (event) => change(type === "checkbox" ? event.target.checked : event.target.value);
  const common = { id, required, "aria-describedby": help ? `${id}-help` : undefined };
  let control;
  if (type === "select") {
    control = html`<select ...${common} value=${value} onChange=${set}>${options.map((option) => {
      const [chosen, title] = Array.isArray(option) ? option : [option, option];
      return html`<option key=${chosen} value=${chosen}>${title}</option>`;
    })}</select>`;
  } else if (type === "textarea") control = html`<textarea ...${common} rows="6" value=${value} onInput=${set}></textarea>`;
  else if (type === "name") control = html`<${NameInput} ...${common} kind=${dependent(field.kind, values)} vhost=${field.vhost} value=${value} onInput=${set} />`;
  else if (type === "checkbox") control = html`<input ...${common} type="checkbox" checked=${value} onChange=${set} />`;
  else control = html`<input ...${common} type=${type} value=${value} min=${field.min} max=${field.max} maxlength=${field.maxlength} autocomplete=${type === "password" ? "new-password" : "off"} spellcheck=${false} onInput=${set} />`;
  return html`<div class=${`field ${type}`}>
    <label for=${id}>${label}${required ? " *" : ""}</label>${control}
    ${field.presets && html`<p class="presets">Add ${field.presets.map(([word, title]) => html`<button type="button" key=${word} title=${word} onClick=${() => change(withWord(value, word))}>${title}</button>`)}</p>`}
    ${help && html`<small id=${`${id}-help`}>${help}</small>`}
  </div>`;
}

/**
 * A form. fields: [{ name, label, type, value, options, required, help, shown(values) }]; the types are text, number, password,
 *   checkbox, select, textarea, name (of an object; `kind` is queues or exchanges, `vhost` its virtual host) and arguments,
 *   whose value is a list for argumentsOf(). `presets` of arguments are [name, title, type, value, hint]; `kind` and `presets`
 *   may be functions of the values. `presets` of a text are [word, title]: buttons add the word to a list with commas between.
 * action: title of the button. done(values, result): text of the notice. submit(values): does it; an error is shown.
 * ask(values): what to confirm first, if it is to be confirmed. leave: address to go to then.
 */
export function Form({ fields, action, submit, done, ask, leave, danger = false, keep = false }) {
  const prefix = useRef(null);
  prefix.current ??= `form-${++forms}`;
  const initial = () => Object.fromEntries(fields.map((field) => [field.name, field.value ?? (field.type === "checkbox" ? false : field.type === "arguments" ? [] : "")]));
  // What was not touched follows the fields: the virtual hosts arrive after the form.
  const [touched, setTouched] = useState({});
  const values = { ...initial(), ...touched };
  const [busy, setBusy] = useState(false);
  const onSubmit = async (event) => {
    event.preventDefault();
    if (busy || (ask && !(await confirm(ask(values))))) return;
    setBusy(true);
    const succeeded = await act((result) => done(values, result), async () => submit(values), leave);
    setBusy(false);
    if (succeeded && !keep) setTouched({});
  };
  return html`<form class="fields" onSubmit=${onSubmit}>
    ${fields.filter((field) => !field.shown || field.shown(values)).map((field) => html`<${Field} key=${field.name} field=${field}
      id=${`${prefix.current}-${field.name}`} value=${values[field.name]} values=${values} change=${(value) => setTouched((old) => ({ ...old, [field.name]: value }))} />`)}
    <div class="buttons"><button type="submit" class=${danger ? "danger" : "primary"} disabled=${busy}>${action}</button></div>
  </form>`;
}

/** The field of a virtual host: that which is chosen for the page, or the first. */
export function useVhostField() {
  const { names } = useStore(vhosts);
  const { vhost } = useStore(settings);
  return { name: "vhost", label: "Virtual host", type: "select", options: names, value: vhost || (names.includes("/") ? "/" : names[0]) };
}
