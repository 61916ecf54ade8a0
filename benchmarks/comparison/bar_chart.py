"""Bar chart of a comparison: SVG with throughput, latency, processor time and memory, in light and dark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from benchmarks.comparison.results import Median, Results, Sample
from benchmarks.comparison.servers import COMPILED, LAVINMQ, LAVINMQ_UNSYNCED, PLAIN, RABBITMQ
from benchmarks.comparison.workloads import WORKLOADS, Workload

WIDTH = 900
LABELS = 290
"""Width for the names on the left, and for the values on the right."""
VALUES = 90
BAR = 13
GAP = 12
TITLE = 44
COLOURS = {
    COMPILED: "warren",
    PLAIN: "plain",
    RABBITMQ: "rabbitmq",
    LAVINMQ: "lavinmq",
    LAVINMQ_UNSYNCED: "unsynced",
}
STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1f2328 }
.title { font-weight: 600; font-size: 15px } .value { font-size: 11px }
.warren { fill: #0f766e } .plain { fill: #5eada6 } .rabbitmq { fill: #d9772b }
.lavinmq { fill: #64748b } .unsynced { fill: #a8b3c2 }
.ground { fill: #ffffff }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .ground { fill: #1e2129 }
.warren { fill: #2dd4bf } .plain { fill: #4f9d95 } .rabbitmq { fill: #f0975a }
.lavinmq { fill: #94a3b8 } .unsynced { fill: #5b6675 } }
"""


class _Drawing:
    """Elements of an SVG from top to bottom."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.y = 10.0

    def text(self, x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> None:
        self.parts.append(
            f'<text x="{x:.0f}" y="{y:.0f}" class="{kind}" text-anchor="{anchor}">{escape(text)}</text>'
        )

    def bar(self, x: float, y: float, width: float, kind: str) -> None:
        self.parts.append(
            f'<rect x="{x:.0f}" y="{y:.1f}" width="{max(width, 1):.1f}" height="{BAR - 2}" rx="2" class="{kind}"/>'
        )


Group = tuple[str, list[tuple[str, float]]]
"""Name of a measurement, and the values of the brokers."""


def draw(results: Results) -> str:
    """Return the whole chart."""
    drawing = _Drawing()
    _legend(drawing, [name for name in COLOURS if name in results.versions])
    rates = [row for row in WORKLOADS if not row.by_latency]
    paced = [row for row in WORKLOADS if row.by_latency]
    _draw_bars(
        drawing,
        "Messages per second: longer is better",
        _groups(results, rates, lambda s: s.per_second),
        "{:,.0f}",
    )
    _draw_bars(
        drawing,
        "Processor time per message, µs: shorter is better",
        _groups(results, rates, lambda s: s.microseconds),
        "{:.1f}",
    )
    _draw_bars(
        drawing,
        "Latency, 99th percentile, ms: shorter is better",
        _groups(results, paced, lambda s: s.p99_ms),
        "{:.2f}",
    )
    memory: list[Group] = []
    for key, name in (("idle", "idle broker, MB"), ("waiting", "per ready 16 B message, bytes")):
        found = results.quantities.get(key, {})
        memory.append((name, [(b, Median.of(found[b]).middle) for b in COLOURS if found.get(b)]))
    _draw_bars(drawing, "Memory: shorter is better", memory, "{:,.0f}", each=True)
    height = drawing.y + 6
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" role="img" '
        f'aria-label="Warren compared with other brokers, {results.date}">\n<style>{STYLE}</style>\n'
        f'<rect class="ground" width="{WIDTH}" height="{height:.0f}"/>\n'
        + "\n".join(drawing.parts)
        + "\n</svg>\n"
    )


def _groups(results: Results, rows: Sequence[Workload], value: Callable[[Sample], float]) -> list[Group]:
    groups: list[Group] = []
    for row in rows:
        brokers = results.loads.get(row.key, {})
        values = [
            (broker, Median.of([value(sample) for sample in brokers[broker]]).middle)
            for broker in COLOURS
            if brokers.get(broker)
        ]
        groups.append((row.name, values))
    return groups


def _legend(drawing: _Drawing, brokers: list[str]) -> None:
    for place, broker in enumerate(brokers):
        x = 10 + place * 170
        drawing.bar(x, drawing.y, BAR, COLOURS[broker])
        drawing.text(x + BAR + 6, drawing.y + BAR - 2, broker)
    drawing.y += BAR + 6


def _draw_bars(drawing: _Drawing, title: str, groups: list[Group], form: str, each: bool = False) -> None:
    """Draw the bars of one measure; with `each`, every group has a scale of its own."""
    groups = [group for group in groups if group[1]]
    if not groups:
        return
    drawing.text(10, drawing.y + 26, title, "title")
    drawing.y += TITLE
    largest = max(value for _, values in groups for _, value in values)
    room = WIDTH - LABELS - VALUES
    for name, values in groups:
        scale = max(value for _, value in values) if each else largest
        drawing.text(LABELS - 10, drawing.y + BAR * len(values) / 2 + 3, name, "", "end")
        for broker, value in values:
            width = room * value / scale if scale else 0
            drawing.bar(LABELS, drawing.y, width, COLOURS[broker])
            drawing.text(LABELS + max(width, 1) + 5, drawing.y + BAR - 3, form.format(value), "value")
            drawing.y += BAR
        drawing.y += GAP
