/** Lists of objects: filter, order, pages and choice of columns; the API sends only the rows and columns that are shown. */
import { api } from "../core/api.js";
import { at, number, text } from "../core/format.js";
import { html, useEffect, useRef, useState } from "../core/html.js";
import { usePoll } from "../core/poll.js";
import { setQuery, useRoute } from "../core/router.js";
import { settings } from "../core/settings.js";
import { useStore } from "../core/store.js";
import { vhosts } from "../core/vhosts.js";
import { Problem } from "./parts.js";

const PAGE_SIZES = [25, 50, 100, 200, 500];
const TYPING_MS = 250;
/** Rows of a list within a view that need no filter. */
const FEW = 10;

function invalidRegex(pattern) {
  try {
    new RegExp(pattern);
    return false;
  } catch {
    return true;
  }
}

function compare(left, right) {
  if (left === right) return 0;
  if (left === undefined || left === null) return -1;
  if (right === undefined || right === null) return 1;
  return left < right ? -1 : 1;
}

/** Returns a page of rows that are all here, in the form in which the API sends pages. */
function pageOf(rows, { page, page_size: size, name, use_regex: useRegex, sort, sort_reverse: reverse }, rowText = (row) => text(row.name)) {
  let fits = () => true;
  if (name && useRegex) {
    const pattern = invalidRegex(name) ? /$^/ : new RegExp(name, "i");
    fits = (row) => pattern.test(rowText(row));
  } else if (name) fits = (row) => rowText(row).toLowerCase().includes(name.toLowerCase());
  const found = rows.filter(fits);
  if (sort) found.sort((left, right) => compare(at(left, sort), at(right, sort)) * (reverse ? -1 : 1));
  const items = found.slice((page - 1) * size, page * size);
  return { items, filtered_count: found.length, total_count: rows.length, page_count: Math.ceil(found.length / size) };
}

function groupsOf(columns) {
  const groups = [];
  for (const { group = "" } of columns) {
    if (groups.length && groups.at(-1).group === group) groups.at(-1).span += 1;
    else groups.push({ group, span: 1 });
  }
  return groups;
}

function Chooser({ id, columns, chosen }) {
  const toggle = (column) => {
    const next = chosen.includes(column) ? chosen.filter((each) => each !== column) : [...chosen, column];
    settings.set({ columns: { ...settings.value.columns, [id]: next } });
  };
  return html`<details class="chooser">
    <summary>Columns</summary>
    <fieldset>
      <legend>Columns that are shown</legend>
      ${columns.filter((column) => !column.always).map(
        (column) => html`<label key=${column.id}>
          <input type="checkbox" checked=${chosen.includes(column.id)} onChange=${() => toggle(column.id)} />
          ${column.group ? `${column.group}: ` : ""}${column.title}
        </label>`,
      )}
    </fieldset>
  </details>`;
}

function Filter({ label, name, useRegex, change }) {
  const [draft, setDraft] = useState(name);
  const timer = useRef(0);
  useEffect(() => setDraft(name), [name]);
  useEffect(() => () => clearTimeout(timer.current), []);
  const type = (value) => {
    setDraft(value);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => change({ name: value, page: undefined }), TYPING_MS);
  };
  const invalid = useRegex && invalidRegex(draft);
  return html`<label class="filter">${label}
      <input type="search" value=${draft} aria-invalid=${invalid} onInput=${(event) => type(event.target.value)} />
    </label>
    <label><input type="checkbox" checked=${useRegex}
      onChange=${(event) => change({ use_regex: event.target.checked ? "true" : undefined, page: undefined })} /> Regex</label>
    ${invalid && html`<span class="problem">not a valid regular expression</span>`}`;
}

function Pager({ data, page, size, change }) {
  const first = data.items.length ? (page - 1) * size + 1 : 0;
  const count = Math.max(data.page_count, 1);
  const all = data.filtered_count === data.total_count ? "" : ` (${number(data.total_count)} without the filter)`;
  return html`<div class="pager">
    <span role="status">${number(first)}–${number(first ? first + data.items.length - 1 : 0)} of ${number(data.filtered_count)}${all}</span>
    <button type="button" disabled=${page <= 1} onClick=${() => change({ page: page - 1 })}>Previous</button>
    <label>Page <input type="number" min="1" max=${count} value=${page}
      onChange=${(event) => change({ page: Math.min(Math.max(Number(event.target.value) || 1, 1), count) })} /> of ${number(count)}</label>
    <button type="button" disabled=${page >= count} onClick=${() => change({ page: page + 1 })}>Next</button>
    <label>Rows <select value=${size} onChange=${(event) => {
      settings.set({ pageSize: Number(event.target.value) });
      change({ page: undefined });
    }}>${PAGE_SIZES.map((each) => html`<option key=${each} value=${each}>${each}</option>`)}</select></label>
  </div>`;
}

/** Returns the filter, order, page and columns of a list: `state` of them, `asked` of the API, and `change` for both. */
function useListState({ id, columns: all, routed = false }) {
  // As in RabbitMQ's page: with one virtual host, its name says nothing.
  const several = useStore(vhosts).names.length > 1;
  const columns = all.filter((column) => several || column.id !== "vhost");
  const route = useRoute();
  const { columns: choices, pageSize } = useStore(settings);
  const [local, setLocal] = useState({});
  const state = routed ? route.query : local;
  const change = routed ? setQuery : (changes) => setLocal((old) => ({ ...old, ...changes }));
  const chosen = choices[id] || columns.filter((column) => !column.hidden).map((column) => column.id);
  const shown = columns.filter((column) => column.always || chosen.includes(column.id));
  const asked = {
    page: Math.max(Number(state.page) || 1, 1),
    page_size: pageSize,
    name: state.name || "",
    use_regex: state.use_regex === "true",
    sort: state.sort || "",
    sort_reverse: state.reverse === "true",
  };
  return { state, change, columns, chosen, shown, asked };
}

/**
 * A list of objects that the API sends.
 *
 * id: name under which the choice of columns is kept. caption: what the list shows.
 * path: path of the API. whole: true for a path without pages: all rows are fetched, and filtered here by rowText(row).
 * columns: [{ id, title, cell(row), sort, needs, group, number, always, hidden }]: `sort` is the path of the value to order
 *   by, `needs` are the columns of the API that `cell` reads (default: the id), `always` cannot be hidden, `hidden` is
 *   hidden at first.
 * rowKey(row): text that tells rows apart. plain: true leaves out the controls while the list is short, for lists within a view.
 * routed: true keeps filter, order and page in the address.
 */
export function ListTable(properties) {
  const { path: where, whole = false, query = {}, rowText, needs: always = [] } = properties;
  const list = useListState(properties);
  const { asked } = list;
  const needed = [...new Set([...always, ...list.shown.flatMap((column) => column.needs || [column.id])])];
  const poll = usePoll(
    async (signal) => {
      if (whole) return { rows: await api.get(where, { query, signal }) };
      return api.get(where, { query: { ...asked, columns: needed.join(","), ...query }, signal });
    },
    whole ? [where, JSON.stringify(query)] : [where, JSON.stringify([asked, needed, query])],
  );
  useEffect(() => {
    if (poll.error?.message.includes("Page out of range")) list.change({ page: undefined });
  }, [poll.error]);
  const data = poll.data && (whole ? poll.data.rows && pageOf(poll.data.rows, asked, rowText) : poll.data);
  return html`<${List} ...${properties} list=${list} data=${data} error=${poll.error} />`;
}

/** A list of objects that are here already: `rows`. The other properties are those of ListTable. */
export function RowsTable({ rows, ...properties }) {
  const list = useListState(properties);
  return html`<${List} ...${properties} list=${list} data=${pageOf(rows, list.asked, properties.rowText)} />`;
}

function List({ id, caption, rowKey, list, data, error, plain = false, empty = "There are none.", filterLabel = "Filter by name" }) {
  const { state, change, columns, chosen, shown, asked } = list;
  const controlled = !plain || (data && data.total_count > FEW);
  const order = (column) => change({ sort: column.sort, reverse: state.sort === column.sort && state.reverse !== "true" ? "true" : undefined, page: undefined });
  const direction = (column) => (state.sort !== column.sort ? undefined : state.reverse === "true" ? "descending" : "ascending");
  const groups = groupsOf(shown);
  return html`<div class="list">
    ${controlled && html`<div class="controls">
      <${Filter} label=${filterLabel} name=${asked.name} useRegex=${asked.use_regex} change=${change} />
      <${Chooser} id=${id} columns=${columns} chosen=${chosen} />
    </div>`}
    <${Problem} error=${error} />
    ${!data ? !error && html`<p class="loading">Loading …</p>` : html`
      ${(data.items.length > 0 || !plain) && html`<div class="scroll" tabindex="0" role="region" aria-label=${caption}>
        <table>
          <caption class="unseen">${caption}</caption>
          <thead>
            ${groups.length > 1 && html`<tr class="groups">${groups.map(({ group, span }, index) => group
              ? html`<th key=${index} scope="colgroup" colspan=${span}>${group}</th>` : html`<td key=${index} colspan=${span}></td>`)}</tr>`}
            <tr>${shown.map((column) => html`<th key=${column.id} scope="col" class=${column.number ? "number" : ""} aria-sort=${column.sort && direction(column)}>
              ${column.sort ? html`<button type="button" onClick=${() => order(column)}>${column.title}</button>` : column.title}
            </th>`)}</tr>
          </thead>
          <tbody>
            ${data.items.map((row) => html`<tr key=${rowKey(row)}>
              ${shown.map((column, index) => {
                const value = column.cell ? column.cell(row) : text(row[column.id]);
                const kind = column.number ? "number" : "";
                return index === 0 ? html`<th key=${column.id} scope="row" class=${kind}>${value}</th>` : html`<td key=${column.id} class=${kind}>${value}</td>`;
              })}
            </tr>`)}
          </tbody>
        </table>
      </div>`}
      ${!data.items.length && html`<p class="empty">${asked.name ? "Nothing fits the filter." : empty}</p>`}
      ${controlled && html`<${Pager} data=${data} page=${asked.page} size=${asked.page_size} change=${change} />`}
    `}
  </div>`;
}

/** A column of counts, sizes or rates: `where` is the path of the value. */
export function valueColumn(id, title, where, format, more = {}) {
  return { id, title, sort: where, needs: [where], number: true, cell: (row) => format(at(row, where)), ...more };
}
