/** Form that adds or changes a policy. */
import { Form, argumentsOf, rowsOf, useVhostField } from "../../components/form.js";
import { api, path } from "../../core/api.js";
import { html } from "../../core/html.js";
import { APPLY_TO, keysFor } from "./policy_kinds.js";

/** kind: one of POLICIES and OPERATOR_POLICIES. policy: the policy to change; without it, one is added. */
export function PolicyForm({ kind, policy }) {
  const vhost = useVhostField();
  const named = policy ? [] : [vhost, { name: "name", label: "Name", required: true }];
  const fields = [
    ...named,
    { name: "pattern", label: "Pattern", value: policy?.pattern ?? "", help: "Regular expression that is searched in names: ^orders\\. matches all that begin with it." },
    { name: "apply", label: "Apply to", type: "select", value: policy?.["apply-to"] ?? "all", options: APPLY_TO },
    { name: "priority", label: "Priority", type: "number", value: String(policy?.priority ?? 0), help: "Of several that match, the one with the highest priority applies." },
    { name: "definition", label: "Definition", type: "arguments", value: rowsOf(policy?.definition), presets: (values) => keysFor(kind, values.apply) },
  ];
  const submit = (values) => api.put(`${kind.api}/` + path`${policy?.vhost ?? values.vhost}/${policy?.name ?? values.name}`, {
    pattern: values.pattern, "apply-to": values.apply, priority: Number(values.priority), definition: argumentsOf(values.definition),
  });
  const title = kind.title.toLowerCase();
  return html`<${Form} fields=${fields} action=${`${policy ? "Update" : "Add"} ${title}`} submit=${submit} done=${(values) => `${kind.title} ${policy?.name ?? values.name} is set.`} />`;
}
