/** A drawing in a box that scrolls, with buttons that make it larger and smaller. */
import { html, useEffect, useRef, useState } from "../core/html.js";

const LEAST = 0.25;
const MOST = 3;
const STEP = 1.25;

/** width, height: of the drawing, whose SVG elements are the children. label: its name. */
export function ZoomBox({ width, height, label, children }) {
  const box = useRef(null);
  const [zoom, setZoom] = useState(1);
  const change = (wanted) => setZoom(Math.min(Math.max(wanted, LEAST), MOST));
  const fit = () => change(Math.min((box.current.clientWidth - 2) / width, 1));
  useEffect(() => {
    const onWheel = (event) => {
      // The wheel alone scrolls the page; a pinch on a touchpad comes with ctrlKey, too.
      if (!event.ctrlKey) return;
      event.preventDefault();
      setZoom((old) => Math.min(Math.max(event.deltaY < 0 ? old * STEP : old / STEP, LEAST), MOST));
    };
    const element = box.current;
    element.addEventListener("wheel", onWheel, { passive: false });
    return () => element.removeEventListener("wheel", onWheel);
  }, []);
  return html`<div class="zoom-box">
    <div class="controls" role="group" aria-label=${`Size of ${label}`}>
      <button type="button" aria-label="Smaller" disabled=${zoom <= LEAST} onClick=${() => change(zoom / STEP)}>−</button>
      <span role="status">${Math.round(zoom * 100)} %</span>
      <button type="button" aria-label="Larger" disabled=${zoom >= MOST} onClick=${() => change(zoom * STEP)}>+</button>
      <button type="button" onClick=${() => change(1)}>Full size</button>
      <button type="button" onClick=${fit}>Fit the width</button>
    </div>
    <div ref=${box} class="scroll drawing" tabindex="0" role="region" aria-label=${label}>
      <svg width=${Math.ceil(width * zoom)} height=${Math.ceil(height * zoom)} viewBox=${`0 0 ${width} ${height}`} role="group" aria-label=${`Drawing of ${label}`}>${children}</svg>
    </div>
  </div>`;
}
