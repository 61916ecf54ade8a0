/** One connection: its rates, facts, channels and client, and a form that closes it. */
import { Chart, RangeChoice, useRange } from "../components/chart.js";
import { Form } from "../components/form.js";
import { shortName } from "../components/links.js";
import { Arguments, Facts, Loaded, Section, State } from "../components/parts.js";
import { api, path } from "../core/api.js";
import { byteRate, bytes, number, when, yesNo } from "../core/format.js";
import { html } from "../core/html.js";
import { usePoll } from "../core/poll.js";
import { SHORT_RANGES, samples } from "../core/settings.js";
import { ChannelList } from "./channels.js";
import { givenName } from "./connections.js";

/** Most bytes of a reason: a reply text of AMQP holds 255, and the broker puts CONNECTION_FORCED before it. */
const REASON_BYTES = 200;

/** Returns a text as a header can carry it: each byte of its UTF-8 as one character. */
function headerText(value) {
  const encoded = new TextEncoder().encode(value);
  if (encoded.length > REASON_BYTES) throw new Error(`The reason is longer than ${REASON_BYTES} bytes.`);
  return String.fromCharCode(...encoded);
}

function CloseForm({ name }) {
  const fields = [{ name: "reason", label: "Reason", maxlength: REASON_BYTES, help: "The client gets it, and the broker logs it." }];
  const submit = ({ reason }) => api.delete(path`connections/${name}`, { headers: reason.trim() ? { "X-Reason": headerText(reason.trim()) } : {} });
  return html`<${Form} fields=${fields} action="Force close" danger submit=${submit} leave="#/connections" done=${() => `The connection ${shortName(name)} is closed.`}
    ask=${() => ({ title: "Close the connection?", text: `${shortName(name)} loses its channels. Most clients connect again at once.`, action: "Close connection" })} />`;
}

export function ConnectionView({ name }) {
  const range = useRange(SHORT_RANGES);
  const poll = usePoll((signal) => api.get(path`connections/${name}`, { query: samples(range, "data_rates"), signal }), [name, range]);
  return html`<h1>Connection ${shortName(name)}</h1><${Loaded} poll=${poll}>${(row) => html`
    <p class="place">${givenName(row) && html`<b>${givenName(row)}</b> `}in virtual host ${row.vhost}</p>
    <${Section} title="Overview">
      <${RangeChoice} ranges=${SHORT_RANGES} />
      <div class="charts">
        <${Chart} title="Data rates" format=${byteRate} lines=${[{ label: "From client", details: row.recv_oct_details, counter: true }, { label: "To client", details: row.send_oct_details, counter: true }]} />
      </div>
      <${Facts} items=${[
        ["User name", row.user], ["State", html`<${State} value=${row.state} />`], ["Protocol", row.protocol],
        ["Client", `${row.peer_host}:${row.peer_port}`], ["Broker", `${row.host}:${row.port}`], ["Connected at", when(row.connected_at)],
        ["SASL mechanism", row.auth_mechanism], ["Heartbeat", row.timeout ? `${row.timeout} s` : "none"],
        ["Channels", number(row.channels)], ["Channel max", number(row.channel_max)], ["Frame max", bytes(row.frame_max)],
        ["Received", `${bytes(row.recv_oct)} in ${number(row.recv_cnt)} packets`], ["Sent", `${bytes(row.send_oct)} in ${number(row.send_cnt)} packets`],
        ["Waits to be sent", bytes(row.send_pend)], ["TLS", yesNo(row.ssl)], ["TLS version", row.ssl_protocol], ["Cipher", row.ssl_cipher],
        ["Certificate of", row.peer_cert_subject], ["Issued by", row.peer_cert_issuer], ["Valid", row.peer_cert_validity],
      ]} />
    <//>
    <${Section} title=${`Channels (${number(row.channels)})`}><${ChannelList} id="channels-of-connection" plain path=${path`connections/${name}/channels`} /><//>
    <${Section} title="Client properties"><${Facts} items=${Object.entries(row.client_properties).map(([key, value]) => [
      key, value && typeof value === "object" ? html`<${Arguments} value=${value} />` : String(value),
    ])} /><//>
    <${Section} title="Close this connection" open=${false}><${CloseForm} name=${name} /><//>
  `}<//>`;
}
