/** Drawing of a topology: exchanges and queues as boxes in layers, what leads from one to another as arrows. */
import { ZoomBox } from "../../components/zoom_box.js";
import { number, rate } from "../../core/format.js";
import { html, useMemo } from "../../core/html.js";
import { layeredLayout } from "../../core/layered_layout.js";
import { link } from "../../core/router.js";

const SIZE = { width: 250, height: 58, gapX: 110, gapY: 18, margin: 16 };
const LABEL = 26;
const KINDS = [["binding", "Binding"], ["alternate", "Alternate exchange"], ["dead-letter", "Dead letters"]];

const cut = (text, length) => (text.length > length ? `${text.slice(0, length - 1)}…` : text);

function pathOf(from, to) {
  const start = { x: from.x + SIZE.width, y: from.y + SIZE.height / 2 };
  const end = { x: to.x - 8, y: to.y + SIZE.height / 2 };
  if (to.x > from.x) {
    const bend = (start.x + end.x) / 2;
    return { line: `M${start.x},${start.y} C${bend},${start.y} ${bend},${end.y} ${end.x},${end.y}`, label: { x: bend, y: (start.y + end.y) / 2 - 4 } };
  }
  // Back to an earlier layer: below the boxes.
  const low = Math.max(from.y, to.y) + SIZE.height + SIZE.gapY / 2;
  return { line: `M${start.x},${start.y} C${start.x + 60},${low} ${end.x - 60},${low} ${end.x},${end.y}`, label: { x: (start.x + end.x) / 2, y: low } };
}

function Arrow({ edge, from, to, several }) {
  const { line, label } = pathOf(from, to);
  const key = several > 1 ? `${several} bindings` : edge.routing_key;
  return html`<g class=${`edge ${edge.kind}`}>
    <title>${`${edge.kind} from ${edge.source} to ${edge.target}${key ? ` with ${key}` : ""}`}</title>
    <path d=${line} marker-end=${`url(#arrow-${edge.kind})`} />
    ${key && html`<text class="key" x=${label.x} y=${label.y} text-anchor="middle">${cut(key, 18)}</text>`}
  </g>`;
}

function Box({ vhost, node, place, risks }) {
  const address = node.kind === "queue" ? link`queues/${vhost}/${node.name}` : link`exchanges/${vhost}/${node.name}`;
  const { x, y } = place;
  const facts = node.kind === "queue" ? `${node.type} · ${number(node.messages)} messages · ${number(node.consumers)} consumers` : `${node.type} exchange`;
  return html`<a href=${address} class=${`node ${node.kind} ${risks.length ? "risky" : ""}`} aria-label=${`${node.kind} ${node.name}${risks.length ? `, ${risks.length} risks` : ""}`}>
    <title>${[`${node.kind} ${node.name}`, ...risks.map((each) => `⚠ ${each.text}`)].join("\n")}</title>
    <rect x=${x} y=${y} width=${SIZE.width} height=${SIZE.height} rx=${node.kind === "queue" ? 4 : 16} />
    <text x=${x + 12} y=${y + 20} class="name">${risks.length ? "⚠ " : ""}${cut(node.name, LABEL)}</text>
    <text x=${x + 12} y=${y + 36}>${cut(facts, 36)}</text>
    <text x=${x + 12} y=${y + 51}>in ${rate(node.in_rate)} · out ${rate(node.out_rate)}</text>
  </a>`;
}

/** Merges bindings between the same two nodes, of which a drawing would show only the last. */
function merged(edges) {
  const found = new Map();
  for (const edge of edges) {
    const key = `${edge.kind}\n${edge.source}\n${edge.target}`;
    const known = found.get(key);
    if (known) known.several += 1;
    else found.set(key, { edge, several: 1 });
  }
  return [...found.values()];
}

/** nodes, edges, risks: as the API sends them; all edges are between these nodes. */
export function TopologyGraph({ vhost, nodes, edges, risks }) {
  const ids = nodes.map((node) => node.id);
  // The structure changes seldom; rates change with every update.
  const { places, width, height } = useMemo(() => layeredLayout(ids, edges, SIZE), [ids.join("\n"), edges.map((each) => `${each.source}\n${each.target}`).join("\n")]);
  return html`<ul class="key-of-edges">${KINDS.map(([kind, title]) => html`<li key=${kind}><svg width="36" height="12" aria-hidden="true" class="edge-sample"><g class=${`edge ${kind}`}><path d="M0,6 L36,6" /></g></svg> ${title}</li>`)}</ul>
    <${ZoomBox} width=${width} height=${height + SIZE.gapY} label="the topology">
      <defs>${KINDS.map(([kind]) => html`<marker key=${kind} id=${`arrow-${kind}`} class=${`head ${kind}`} viewBox="0 0 8 8" refX="1" refY="4" markerWidth="8" markerHeight="8" markerUnits="userSpaceOnUse" orient="auto"><path d="M0,0 L8,4 L0,8 z" /></marker>`)}</defs>
      ${merged(edges).map(({ edge, several }) => html`<${Arrow} key=${`${edge.kind}\n${edge.source}\n${edge.target}`} edge=${edge} several=${several} from=${places.get(edge.source)} to=${places.get(edge.target)} />`)}
      ${nodes.map((node) => html`<${Box} key=${node.id} vhost=${vhost} node=${node} place=${places.get(node.id)} risks=${risks.filter((each) => each.subject === node.id)} />`)}
    <//>`;
}
