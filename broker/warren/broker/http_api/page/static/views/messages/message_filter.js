/** Form that chooses which messages of a queue are shown; the choice is in the address. */
import { html } from "../../core/html.js";
import { setQuery, useRoute } from "../../core/router.js";

const STATES = [["ready", "Ready"], ["unacknowledged", "Unacknowledged"], ["retry", "Waiting for a delayed retry"], ["dead-lettering", "Being dead-lettered"]];
const CONDITIONS = [
  ["message_id", "Message id"], ["header", "Header", "name or name=value"], ["property", "Property", "type=order"],
  ["exchange", "Exchange"], ["routing_key", "Routing key"], ["group", "Cause of death"],
];
const SIZES = [["4096", "4 KiB"], ["65536", "64 KiB"], ["262144", "256 KiB"]];
const NAMES = ["state", "offset", "truncate", ...CONDITIONS.map(([name]) => name)];

/** Returns the parameters of a request for messages that the address asks for. */
export function filterOf(query) {
  return Object.fromEntries(["after", ...NAMES].filter((name) => query[name]).map((name) => [name, query[name]]));
}

export function MessageFilter({ stream }) {
  const { query } = useRoute();
  const submit = (event) => {
    event.preventDefault();
    const found = Object.fromEntries(new FormData(event.target));
    setQuery({ after: undefined, ...Object.fromEntries(NAMES.map((name) => [name, found[name] || undefined])) });
  };
  // The key makes the inputs anew when the address changes, for example by the Back button.
  return html`<form key=${JSON.stringify(query)} class="filters" aria-label="Filter" onSubmit=${submit}>
    ${stream ? html`<label>From offset <input name="offset" defaultValue=${query.offset || "first"} placeholder="first, last or a number" /></label>`
      : html`<label>State <select name="state">${STATES.map(([value, title]) => html`<option key=${value} value=${value} selected=${value === (query.state || STATES[0][0])}>${title}</option>`)}</select></label>`}
    ${CONDITIONS.map(([name, title, hint]) => html`<label key=${name}>${title} <input name=${name} defaultValue=${query[name] || ""} placeholder=${hint} maxlength="1024" spellcheck=${false} /></label>`)}
    <label>Payload up to <select name="truncate">${SIZES.map(([value, title]) => html`<option key=${value} value=${value} selected=${value === (query.truncate || SIZES[0][0])}>${title}</option>`)}</select></label>
    <div class="buttons"><button type="submit" class="primary">Filter</button>
      <button type="button" onClick=${() => setQuery(Object.fromEntries(["after", ...NAMES].map((name) => [name, undefined])))}>Show all</button></div>
  </form>`;
}
