/** Connections: the list. */
import { ConnectionLink } from "../components/links.js";
import { State } from "../components/parts.js";
import { ListTable, valueColumn } from "../components/table.js";
import { path } from "../core/api.js";
import { byteRate, bytes, number, text, when, yesNo } from "../core/format.js";
import { html } from "../core/html.js";
import { settings } from "../core/settings.js";
import { useStore } from "../core/store.js";

/** Returns what the client calls a connection, if it does. */
export const givenName = (row) => text(row.client_properties?.connection_name);

/** Returns library and platform of the client. */
export const clientOf = ({ client_properties: found = {} }) => [found.product, found.version, found.platform].filter(Boolean).map(text).join(" · ");

const TLS = ["ssl_protocol", "ssl_cipher", "peer_cert_subject"];
const COLUMNS = [
  { id: "name", title: "Name", sort: "name", always: true, needs: ["name", "client_properties.connection_name"],
    cell: (row) => html`<${ConnectionLink} name=${row.name} />${givenName(row) && html`<small class="given">${givenName(row)}</small>`}` },
  { id: "vhost", title: "Virtual host", sort: "vhost" },
  { id: "user", title: "User name", sort: "user" },
  { id: "state", title: "State", sort: "state", cell: (row) => html`<${State} value=${row.state} />` },
  { id: "ssl", title: "TLS", sort: "ssl", group: "Details", cell: (row) => yesNo(row.ssl) },
  { id: "ssl_info", title: "TLS details", group: "Details", hidden: true, needs: TLS, cell: (row) => TLS.map((name) => text(row[name])).filter(Boolean).join(" · ") },
  { id: "protocol", title: "Protocol", sort: "protocol", group: "Details" },
  valueColumn("channels", "Channels", "channels", number, { group: "Details" }),
  valueColumn("channel_max", "Channel max", "channel_max", number, { group: "Details", hidden: true }),
  valueColumn("frame_max", "Frame max", "frame_max", bytes, { group: "Details", hidden: true }),
  { id: "auth_mechanism", title: "SASL mechanism", sort: "auth_mechanism", group: "Details", hidden: true },
  { id: "client", title: "Client", sort: "client_properties.product", group: "Details", hidden: true, needs: ["client_properties"], cell: clientOf },
  valueColumn("from_client", "From client", "recv_oct_details.rate", byteRate, { group: "Network" }),
  valueColumn("to_client", "To client", "send_oct_details.rate", byteRate, { group: "Network" }),
  valueColumn("heartbeat", "Heartbeat", "timeout", (value) => (value ? `${value} s` : "none"), { group: "Network" }),
  valueColumn("connected_at", "Connected at", "connected_at", when, { group: "Network", hidden: true }),
];

export function Connections() {
  const { vhost } = useStore(settings);
  return html`<h1>Connections</h1>
    <${ListTable} id="connections" routed caption="Connections" path=${vhost ? path`vhosts/${vhost}/connections` : "connections"} columns=${COLUMNS}
      rowKey=${(row) => row.name} empty="There are no connections that you may see." />`;
}
