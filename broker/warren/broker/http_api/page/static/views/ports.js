/** Ports at which the broker listens, and what is served there over HTTP. */
import { html } from "../core/html.js";
import { yesNo } from "../core/format.js";
import { RowsTable } from "../components/table.js";

const ADDRESS = [
  { id: "ip", title: "Bound to", cell: (row) => row.ip_address ?? row.ip },
  { id: "port", title: "Port", number: true, cell: (row) => String(row.port) },
];
const LISTENERS = [{ id: "protocol", title: "Protocol", always: true }, ...ADDRESS, { id: "tls", title: "TLS", cell: (row) => yesNo(row.tls) }];
const CONTEXTS = [{ id: "description", title: "Context", always: true }, ...ADDRESS, { id: "path", title: "Path" }];
const rowKey = (row) => `${row.protocol} ${row.ip_address ?? row.ip} ${row.port}`;

export function Ports({ listeners, contexts }) {
  return html`<h3>Listening ports</h3><${RowsTable} id="listeners" plain caption="Listening ports" rows=${listeners} columns=${LISTENERS} rowKey=${rowKey} />
    <h3>Web contexts</h3><${RowsTable} id="contexts" plain caption="Web contexts" rows=${contexts} columns=${CONTEXTS} rowKey=${rowKey} />`;
}
