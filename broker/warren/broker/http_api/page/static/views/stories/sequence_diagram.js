/** Sequence diagram of a story: participants with their lifelines, and steps as arrows from one to another. */
import { shortName } from "../../components/links.js";
import { ZoomBox } from "../../components/zoom_box.js";
import { html } from "../../core/html.js";

const TIME = 90;
const COLUMN = 220;
const ROW = 40;
const TOP = 64;
const HEAD = 36;
const COLOURS = 8;
/** Approximate widths of a letter in pixels: of labels, and of names, which are bold. */
const LETTER = 6.4;
const BOLD_LETTER = 8.6;

const cut = (text, width, letter = LETTER) => {
  const most = Math.max(Math.floor(width / letter), 4);
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
};

/** Returns participants in the order in which a message passes them, with their places. */
function lifelines(participants, steps) {
  const used = participants.filter((name) => steps.some((step) => step.source === name || step.target === name));
  return new Map(used.map((name, index) => [name, TIME + COLUMN / 2 + index * COLUMN]));
}

function Participant({ name, x, height }) {
  const [kind, ...rest] = name.split(" ");
  const known = rest.length && ["queue", "exchange", "client"].includes(kind);
  return html`<g class="participant"><title>${name}</title>
    <line x1=${x} x2=${x} y1=${HEAD + 12} y2=${height} />
    <rect x=${x - COLUMN / 2 + 10} y="8" width=${COLUMN - 20} height=${HEAD} rx="4" />
    <text class="kind" x=${x} y="22" text-anchor="middle">${known ? kind : name === "broker" ? "" : "application"}</text>
    <text class="name" x=${x} y="37" text-anchor="middle">${cut(known ? shortName(rest.join(" ")) : name, COLUMN - 30, BOLD_LETTER)}</text>
  </g>`;
}

function StepArrow({ step, message, y, x, time }) {
  const [from, to] = [x.get(step.source), x.get(step.target)];
  const colour = `message-${message % COLOURS}`;
  const label = `M${message + 1} ${step.text}`;
  if (from === to) {
    return html`<g class=${`step ${colour}`}><title>${label}</title><text class="time" x="8" y=${y + 4}>${time}</text>
      <rect x=${from - 5} y=${y - 5} width="10" height="10" /><text x=${from + 12} y=${y + 4}>${cut(label, COLUMN - 24)}</text></g>`;
  }
  const tip = to > from ? to - 9 : to + 9;
  return html`<g class=${`step ${colour} ${step.answer ? "answer" : ""}`}><title>${label}</title><text class="time" x="8" y=${y + 4}>${time}</text>
    <line x1=${from} x2=${tip} y1=${y} y2=${y} /><polygon points=${`${to},${y} ${tip},${y - 5} ${tip},${y + 5}`} />
    <text x=${(from + to) / 2} y=${y - 6} text-anchor="middle">${cut(label, Math.abs(to - from) - 24)}</text></g>`;
}

/** steps: of the story, which are drawn. numberOf: number of a message by its id, from 0. timeOf(step): its time as text. */
export function SequenceDiagram({ participants, steps, numberOf, timeOf }) {
  const x = lifelines(participants, steps);
  const width = TIME + x.size * COLUMN + 10;
  const height = TOP + steps.length * ROW + 10;
  return html`<${ZoomBox} width=${width} height=${height} label="the sequence">
    ${[...x].map(([name, place]) => html`<${Participant} key=${name} name=${name} x=${place} height=${height} />`)}
    ${steps.map((step, index) => html`<${StepArrow} key=${index} step=${step} message=${numberOf.get(step.message_id) ?? 0} y=${TOP + index * ROW + 20} x=${x} time=${timeOf(step)} />`)}
  <//>`;
}
