/** Layout of a directed graph in layers from left to right, after Sugiyama: layers, order within them, places. */

const SWEEPS = 4;

/** Returns for each node those that its edges lead to, without edges that close a cycle. */
function acyclic(ids, edges) {
  const targets = new Map(ids.map((id) => [id, []]));
  for (const { source, target } of edges) if (source !== target) targets.get(source).push(target);
  const state = new Map();
  const kept = new Map(ids.map((id) => [id, []]));
  for (const root of ids) {
    if (state.has(root)) continue;
    // Not recursive: a chain of exchanges may be longer than the stack.
    const stack = [[root, 0]];
    state.set(root, "open");
    while (stack.length) {
      const top = stack.at(-1);
      const [id, index] = top;
      const next = targets.get(id)[index];
      if (next === undefined) {
        state.set(id, "done");
        stack.pop();
        continue;
      }
      top[1] += 1;
      if (state.get(next) === "open") continue;
      kept.get(id).push(next);
      if (!state.has(next)) {
        state.set(next, "open");
        stack.push([next, 0]);
      }
    }
  }
  return kept;
}

/** Returns the layer of each node: the length of the longest path that leads to it. */
function layersOf(ids, targets) {
  const incoming = new Map(ids.map((id) => [id, 0]));
  for (const nexts of targets.values()) for (const next of nexts) incoming.set(next, incoming.get(next) + 1);
  const layer = new Map(ids.map((id) => [id, 0]));
  const ready = ids.filter((id) => !incoming.get(id));
  while (ready.length) {
    const id = ready.shift();
    for (const next of targets.get(id)) {
      layer.set(next, Math.max(layer.get(next), layer.get(id) + 1));
      incoming.set(next, incoming.get(next) - 1);
      if (!incoming.get(next)) ready.push(next);
    }
  }
  return layer;
}

/** Orders each layer by the mean place of the neighbours before or behind it, so that fewer edges cross; nodes without any come last. */
function order(columns, targets) {
  const sources = new Map();
  for (const [id, nexts] of targets) for (const next of nexts) sources.set(next, [...(sources.get(next) || []), id]);
  const place = new Map(columns.flatMap((column) => column.map((id, index) => [id, index])));
  for (let sweep = 0; sweep < SWEEPS; sweep += 1) {
    const forward = sweep % 2 === 0;
    for (const column of forward ? columns : [...columns].reverse()) {
      const mean = (id) => {
        const near = (forward ? sources : targets).get(id) || [];
        if (near.length) return near.reduce((sum, each) => sum + place.get(each), 0) / near.length;
        return targets.get(id).length || sources.has(id) ? place.get(id) : Infinity;
      };
      const weights = new Map(column.map((id) => [id, mean(id)]));
      // Of two without neighbours, the difference is no number.
      column.sort((left, right) => weights.get(left) - weights.get(right) || 0);
      column.forEach((id, index) => place.set(id, index));
    }
  }
}

/**
 * Returns { places, width, height }: the upper left corner of each node by its id, and the size of the whole.
 *
 * ids: of the nodes. edges: [{ source, target }] between them. size: { width, height, gapX, gapY, margin } of the nodes.
 */
export function layeredLayout(ids, edges, { width, height, gapX, gapY, margin }) {
  const targets = acyclic(ids, edges);
  const layer = layersOf(ids, targets);
  const columns = [];
  for (const id of ids) (columns[layer.get(id)] ??= []).push(id);
  order(columns, targets);
  const most = Math.max(...columns.map((column) => column.length), 1);
  const step = height + gapY;
  const places = new Map();
  columns.forEach((column, x) => {
    const top = margin + ((most - column.length) * step) / 2;
    column.forEach((id, y) => places.set(id, { x: margin + x * (width + gapX), y: top + y * step }));
  });
  return { places, width: 2 * margin + columns.length * (width + gapX) - gapX, height: 2 * margin + most * step - gapY };
}
