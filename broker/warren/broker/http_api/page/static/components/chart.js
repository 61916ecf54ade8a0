/** Charts of samples over time. */
import { byteRate, bytes } from "../core/format.js";
import { html, useEffect, useRef, useState } from "../core/html.js";
import { RANGES, isDark, settings } from "../core/settings.js";
import { useStore } from "../core/store.js";
import uPlot from "../vendor/uplot.module.js";

const HEIGHT = 180;
/** Pixels that a time takes on an axis, and what may be between two ticks: bytes, seconds. */
const TIME_WIDTH = 70;
const SIZE_STEPS = Array.from({ length: 50 }, (_, power) => 2 ** power);
const TIME_STEPS = [5, 10, 15, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 10800, 21600, 43200, 86400];
const COLOURS = 10;

/** Returns the seconds that charts cover: those that are chosen, if there are samples of so many. */
export function useRange(ranges = RANGES) {
  const { range } = useStore(settings);
  return ranges.some(([seconds]) => seconds === range) ? range : 600;
}

/** Choice of the time that charts cover, which all charts share. */
export function RangeChoice({ ranges = RANGES }) {
  const range = useRange(ranges);
  return html`<label class="range">Charts cover
    <select value=${range} onChange=${(event) => settings.set({ range: Number(event.target.value) })}>
      ${ranges.map(([seconds, , title]) => html`<option key=${seconds} value=${seconds}>${title}</option>`)}
    </select>
  </label>`;
}

/** Returns seconds and values of samples in ascending order; of a counter, its growth per second. */
function points({ details, counter }) {
  const samples = [...(details?.samples || [])].reverse();
  const found = new Map();
  samples.forEach(({ sample, timestamp }, index) => {
    if (!counter) found.set(timestamp / 1000, sample);
    else if (index) {
      const before = samples[index - 1];
      const seconds = (timestamp - before.timestamp) / 1000;
      if (seconds > 0) found.set(timestamp / 1000, Math.max(sample - before.sample, 0) / seconds);
    }
  });
  return found;
}

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** Returns times of an axis as text: with seconds or the day where the ticks need them. */
function clock(_, ticks, axis, space, step) {
  const form = { hour: "2-digit", minute: "2-digit", hourCycle: "h23", ...(step < 60 ? { second: "2-digit" } : {}), ...(step >= 86400 ? { day: "2-digit", month: "short" } : {}) };
  return ticks.map((seconds) => new Date(seconds * 1000).toLocaleString(undefined, form));
}

function options(lines, hidden, format, width) {
  const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line"), width: 1 } };
  return {
    width,
    height: HEIGHT,
    // Half of the last time on the axis.
    padding: [8, TIME_WIDTH / 2, 0, 0],
    legend: { show: false },
    cursor: { points: { size: 6 }, drag: { x: false, y: false } },
    scales: { y: { range: (_, least, most) => [Math.min(0, least || 0), (most || 0) > 0 ? most * 1.1 : 1] } },
    axes: [{ ...axis, space: TIME_WIDTH, incrs: TIME_STEPS, size: 30, values: clock }, { ...axis, size: 70, incrs: [bytes, byteRate].includes(format) ? SIZE_STEPS : undefined, values: (_, ticks) => ticks.map((tick) => format(tick)) }],
    series: [
      {},
      ...lines.map((line, index) => ({
        label: line.label,
        show: !hidden.includes(line.label),
        stroke: colour(`--line-${index % COLOURS}`),
        width: 2,
        points: { show: false },
      })),
    ],
  };
}

/**
 * A chart. lines: [{ label, details, counter }]: `details` has samples as the API sends them; of a counter, its rate is drawn.
 * format(value): the value as text.
 */
export function Chart({ title, lines, format }) {
  useStore(settings);
  const dark = isDark();
  const [hidden, setHidden] = useState([]);
  const [pointed, setPointed] = useState(null);
  const place = useRef(null);
  const plot = useRef(null);
  const present = lines.filter((line) => line.details?.samples);
  const maps = present.map(points);
  const times = [...new Set(maps.flatMap((map) => [...map.keys()]))].sort((left, right) => left - right);
  const values = maps.map((map) => times.map((time) => map.get(time) ?? null));
  const labels = present.map((line) => line.label).join("\n");

  useEffect(() => {
    const element = place.current;
    if (!element) return undefined;
    plot.current = new uPlot(options(present, hidden, format, element.clientWidth || 300), [times, ...values], element);
    plot.current.over.addEventListener("mousemove", () => setPointed(plot.current?.cursor.idx ?? null));
    plot.current.over.addEventListener("mouseleave", () => setPointed(null));
    const sizes = new ResizeObserver(() => element.clientWidth && plot.current?.setSize({ width: element.clientWidth, height: HEIGHT }));
    sizes.observe(element);
    return () => {
      sizes.disconnect();
      plot.current.destroy();
      plot.current = null;
    };
  }, [labels, hidden.join("\n"), dark]);
  useEffect(() => plot.current?.setData([times, ...values]), [times.join(), JSON.stringify(values)]);

  const last = (index) => format((pointed !== null ? values[index][pointed] : null) ?? values[index].at(-1) ?? present[index].details.rate ?? 0);
  const toggle = (label) => setHidden((old) => (old.includes(label) ? old.filter((each) => each !== label) : [...old, label]));
  if (!present.length) return html`<figure class="chart"><figcaption>${title}</figcaption><p class="empty">Nothing yet.</p></figure>`;
  return html`<figure class="chart">
    <figcaption>${title}</figcaption>
    <div ref=${place} role="img" aria-label=${`${title}: ` + present.map((line, index) => `${line.label} ${last(index)}`).join(", ")}></div>
    <ul class="legend">
      ${present.map((line, index) => html`<li key=${line.label}>
        <button type="button" aria-pressed=${!hidden.includes(line.label)} onClick=${() => toggle(line.label)}>
          <span class=${`swatch line-${index % COLOURS}`}></span>${line.label} <b>${last(index)}</b>
        </button>
      </li>`)}
    </ul>
  </figure>`;
}

const MESSAGE_RATES = [
  ["publish", "Publish"], ["confirm", "Publisher confirm"], ["publish_in", "Publish (in)"], ["publish_out", "Publish (out)"],
  ["deliver", "Deliver (manual ack)"], ["deliver_no_ack", "Deliver (auto ack)"], ["ack", "Consumer ack"], ["redeliver", "Redelivered"],
  ["get", "Get (manual ack)"], ["get_no_ack", "Get (auto ack)"], ["get_empty", "Get (empty)"],
  ["return_unroutable", "Unroutable (return)"], ["drop_unroutable", "Unroutable (drop)"], ["disk_reads", "Disk read"], ["disk_writes", "Disk write"],
];

/** Lines of message rates, of those counters that an object has. */
export function messageRates(stats = {}) {
  return MESSAGE_RATES.filter(([name]) => stats[`${name}_details`]).map(([name, label]) => ({ label, details: stats[`${name}_details`], counter: true }));
}

export function queuedMessages(row = {}) {
  return [["messages_ready", "Ready"], ["messages_unacknowledged", "Unacked"], ["messages", "Total"]].map(([name, label]) => ({
    label, details: row[`${name}_details`],
  }));
}
