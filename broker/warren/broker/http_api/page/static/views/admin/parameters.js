/** Runtime parameters: those of components in virtual hosts, and global ones. */
import { Allowed } from "../../components/allowed.js";
import { Form, useVhostField } from "../../components/form.js";
import { Section } from "../../components/parts.js";
import { RemoveButton } from "../../components/remove_button.js";
import { ListTable } from "../../components/table.js";
import { api, path } from "../../core/api.js";
import { text } from "../../core/format.js";
import { html } from "../../core/html.js";
import { hasRole } from "../../core/session.js";

const VALUE = { id: "value", title: "Value", cell: (row) => html`<code>${text(row.value)}</code>` };

function removal(question, where) {
  return { id: "remove", title: "Action", always: true, needs: [], cell: (row) => html`<${RemoveButton} title="Delete" label=${`Delete ${row.name}`} question=${question} text=${`${row.name} will be lost.`}
    remove=${() => api.delete(where(row))} done=${`Parameter ${row.name} is deleted.`} />` };
}

const COLUMNS = [
  { id: "name", title: "Name", sort: "name", always: true },
  { id: "vhost", title: "Virtual host", sort: "vhost" },
  { id: "component", title: "Component", sort: "component" },
  VALUE,
  removal("Delete the parameter?", (row) => path`parameters/${row.component}/${row.vhost}/${row.name}`),
];
const GLOBAL_COLUMNS = [{ id: "name", title: "Name", sort: "name", always: true }, VALUE];
const GLOBAL_REMOVAL = removal("Delete the global parameter?", (row) => path`global-parameters/${row.name}`);
const JSON_FIELD = { name: "value", label: "Value", type: "textarea", required: true, help: "JSON: a text needs quotes." };

function parsed(value) {
  try {
    return JSON.parse(value);
  } catch {
    throw new Error("The value is not JSON.");
  }
}

function AddParameter() {
  const fields = [useVhostField(), { name: "component", label: "Component", required: true }, { name: "name", label: "Name", required: true }, JSON_FIELD];
  const submit = async (values) => api.put(path`parameters/${values.component}/${values.vhost}/${values.name}`, { value: parsed(values.value) });
  return html`<${Form} fields=${fields} action="Set parameter" submit=${submit} done=${(values) => `Parameter ${values.name} is set.`} />`;
}

function AddGlobalParameter() {
  const submit = async (values) => api.put(path`global-parameters/${values.name}`, { value: parsed(values.value) });
  return html`<${Form} fields=${[{ name: "name", label: "Name", required: true }, JSON_FIELD]} action="Set global parameter" submit=${submit} done=${(values) => `Global parameter ${values.name} is set.`} />`;
}

export function Parameters() {
  const globals = hasRole("policymaker") ? [...GLOBAL_COLUMNS, GLOBAL_REMOVAL] : GLOBAL_COLUMNS;
  return html`<h1>Runtime parameters</h1>
    <${Section} title="Parameters">
      <${ListTable} id="parameters" whole plain caption="Parameters" path="parameters" columns=${COLUMNS} rowKey=${(row) => `${row.component}\n${row.vhost}\n${row.name}`} rowText=${(row) => `${row.component} ${row.name}`} />
    <//>
    <${Section} title="Set a parameter" open=${false}><${AddParameter} /><//>
    <${Section} title="Global parameters">
      <${ListTable} id="global-parameters" whole plain caption="Global parameters" path="global-parameters" columns=${globals} rowKey=${(row) => row.name} />
    <//>
    <${Section} title="Set a global parameter" open=${false}><${Allowed} role="policymaker" task="set global parameters"><${AddGlobalParameter} /><//><//>`;
}
