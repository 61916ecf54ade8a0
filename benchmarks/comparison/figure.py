"""The figure of a comparison: SVG with throughput, latency, processor time and memory, in light and dark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from benchmarks.comparison.results import Median, Results, Sample
from benchmarks.comparison.rows import ROWS, Row
from benchmarks.comparison.servers import COMPILED, LAVINMQ, LAVINMQ_UNSYNCED, PLAIN, RABBITMQ

WIDTH = 900
LABELS = 290
"""For the names at the left, and the values at the right."""
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


class _Sheet:
    """Lines of SVG from top to bottom."""

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
"""A name, and the values of the brokers."""


def draw(results: Results) -> str:
    """The whole figure."""
    sheet = _Sheet()
    _legend(sheet, [name for name in COLOURS if name in results.versions])
    rates = [row for row in ROWS if not row.by_latency]
    paced = [row for row in ROWS if row.by_latency]
    _part(
        sheet,
        "Messages a second: longer is better",
        _groups(results, rates, lambda s: s.per_second),
        "{:,.0f}",
    )
    _part(
        sheet,
        "Processor time a message, µs: shorter is better",
        _groups(results, rates, lambda s: s.microseconds),
        "{:.1f}",
    )
    _part(
        sheet,
        "Latency, 99th percentile, ms: shorter is better",
        _groups(results, paced, lambda s: s.p99_ms),
        "{:.2f}",
    )
    memory: list[Group] = []
    for key, name in (("idle", "at rest, MB"), ("waiting", "a waiting 16 B message, bytes")):
        found = results.quantities.get(key, {})
        memory.append((name, [(b, Median.of(found[b]).middle) for b in COLOURS if found.get(b)]))
    _part(sheet, "Memory: shorter is better", memory, "{:,.0f}", each=True)
    height = sheet.y + 6
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" role="img" '
        f'aria-label="Warren beside other brokers, {results.date}">\n<style>{STYLE}</style>\n'
        f'<rect class="ground" width="{WIDTH}" height="{height:.0f}"/>\n'
        + "\n".join(sheet.parts)
        + "\n</svg>\n"
    )


def _groups(results: Results, rows: Sequence[Row], value: Callable[[Sample], float]) -> list[Group]:
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


def _legend(sheet: _Sheet, brokers: list[str]) -> None:
    for place, broker in enumerate(brokers):
        x = 10 + place * 170
        sheet.bar(x, sheet.y, BAR, COLOURS[broker])
        sheet.text(x + BAR + 6, sheet.y + BAR - 2, broker)
    sheet.y += BAR + 6


def _part(sheet: _Sheet, title: str, groups: list[Group], form: str, each: bool = False) -> None:
    """Bars of one measure; with `each`, every group has a scale of its own."""
    groups = [group for group in groups if group[1]]
    if not groups:
        return
    sheet.text(10, sheet.y + 26, title, "title")
    sheet.y += TITLE
    largest = max(value for _, values in groups for _, value in values)
    room = WIDTH - LABELS - VALUES
    for name, values in groups:
        scale = max(value for _, value in values) if each else largest
        sheet.text(LABELS - 10, sheet.y + BAR * len(values) / 2 + 3, name, "", "end")
        for broker, value in values:
            width = room * value / scale if scale else 0
            sheet.bar(LABELS, sheet.y, width, COLOURS[broker])
            sheet.text(LABELS + max(width, 1) + 5, sheet.y + BAR - 3, form.format(value), "value")
            sheet.y += BAR
        sheet.y += GAP
