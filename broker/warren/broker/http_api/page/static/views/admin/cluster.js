/** Name of the cluster. */
import { Allowed } from "../../components/allowed.js";
import { Form } from "../../components/form.js";
import { Loaded } from "../../components/parts.js";
import { api } from "../../core/api.js";
import { html } from "../../core/html.js";
import { usePoll } from "../../core/poll.js";

export function ClusterName() {
  const poll = usePoll((signal) => api.get("cluster-name", { signal }), []);
  return html`<h1>Cluster</h1><${Loaded} poll=${poll}>${({ name }) => html`
    <p>The name is <b>${name}</b>. Clients get it when they connect.</p>
    <${Allowed} role="administrator" task="change the name">
      <${Form} fields=${[{ name: "name", label: "Name", required: true, value: name }]} action="Change name" submit=${(values) => api.put("cluster-name", values)} done=${(values) => `The cluster's name is ${values.name}.`} />
    <//>
  `}<//>`;
}
