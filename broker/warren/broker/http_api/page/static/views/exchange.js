/** One exchange: its rates, facts and bindings, and forms that publish to it and delete it. */
import { BindExchangeForm, Bindings } from "../components/bindings.js";
import { Chart, RangeChoice, messageRates, useRange } from "../components/chart.js";
import { Features } from "../components/features.js";
import { Form } from "../components/form.js";
import { exchangeTitle } from "../components/links.js";
import { PublishForm } from "../components/messages.js";
import { Arguments, Facts, Loaded, Section } from "../components/parts.js";
import { api, path } from "../core/api.js";
import { number, rate } from "../core/format.js";
import { html } from "../core/html.js";
import { usePoll } from "../core/poll.js";
import { SHORT_RANGES, samples } from "../core/settings.js";

function ExchangeBindings({ vhost, part }) {
  if (part === "amq.default")
    return html`<p>Each queue is bound to the default exchange, with its own name as the routing key. These bindings cannot be changed.</p>`;
  return html`<h3>To this exchange</h3><${Bindings} where=${path`exchanges/${vhost}/${part}/bindings/destination`} incoming />
    <h3>From this exchange</h3><${Bindings} where=${path`exchanges/${vhost}/${part}/bindings/source`} />
    <h3>Add a binding from this exchange</h3><${BindExchangeForm} vhost=${vhost} exchange=${part} />`;
}

function DeleteForm({ vhost, part }) {
  const fixed = part.startsWith("amq.");
  const fields = [{ name: "unused", label: "Only if unused", type: "checkbox", help: "Refuse while something is bound to it." }];
  if (fixed) return html`<p>The broker declares this exchange itself; it cannot be deleted.</p>`;
  return html`<${Form} fields=${fields} action="Delete exchange" danger leave="#/exchanges" done=${() => `Exchange ${part} is deleted.`}
    submit=${(values) => api.delete(path`exchanges/${vhost}/${part}`, { query: { "if-unused": values.unused } })}
    ask=${() => ({ title: "Delete the exchange?", text: `${part} and its bindings will be removed. Publishers get an error.`, action: "Delete exchange" })} />`;
}

/** name: amq.default for the default exchange, which has no name. */
export function ExchangeView({ vhost, name: part }) {
  const range = useRange(SHORT_RANGES);
  const name = part === "amq.default" ? "" : part;
  const poll = usePoll((signal) => api.get(path`exchanges/${vhost}/${part}`, { query: samples(range, "msg_rates"), signal }), [vhost, part, range]);
  return html`<h1>Exchange ${exchangeTitle(name)}</h1><p class="place">in virtual host ${vhost}</p><${Loaded} poll=${poll}>${(row) => html`
    <${Section} title="Overview">
      <${RangeChoice} ranges=${SHORT_RANGES} />
      <div class="charts"><${Chart} title="Message rates" format=${rate} lines=${messageRates(row.message_stats)} /></div>
      <${Facts} items=${[
        ["Type", row.type], ["Features", html`<${Features} row=${row} />`],
        ["Arguments", Object.keys(row.arguments).length ? html`<${Arguments} value=${row.arguments} />` : ""], ["Policy", row.policy],
        ["Published in", number(row.message_stats?.publish_in)], ["Routed out", number(row.message_stats?.publish_out)],
      ]} />
    <//>
    <${Section} title="Bindings"><${ExchangeBindings} vhost=${vhost} part=${part} /><//>
    <${Section} title="Publish message" open=${false}>
      ${row.internal ? html`<p>The exchange is internal: only other exchanges publish to it.</p>` : html`<${PublishForm} vhost=${vhost} exchange=${name} />`}
    <//>
    <${Section} title="Delete" open=${false}><${DeleteForm} vhost=${vhost} part=${part} /><//>
  `}<//>`;
}
