"""Figures over time (columns, lines) and rankings whose names are long, in the manner of the pages of `report`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from warren.pipeline.report import html_page
from warren.pipeline.report.html_page import LETTER, NARROW, WIDE, Part, Table

BROAD = 960
"""Units of a drawing that takes a page's whole width; on a phone it has `report.NARROW`."""
TONES = ("plain", "late", "warn", "good", "off")
"""Colours of kinds that are neither good nor bad, in their order."""


@dataclass(frozen=True)
class Series:
    """Values, one a step of time; None where nothing is known."""

    name: str
    tone: str
    values: tuple[float | None, ...]


@dataclass(frozen=True)
class Level:
    """A line across, with words on it: a limit."""

    value: float
    words: str


@dataclass(frozen=True)
class Chart:
    """Values over time. Columns are stacked; lines are not."""

    title: str
    says: str
    labels: tuple[str, ...]
    """One for each step; as many are drawn as there is room for."""
    series: tuple[Series, ...]
    table: Table
    """What the drawing shows, folded up."""
    lines: bool = False
    levels: tuple[Level, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class Ranked:
    """A name above its bar, a number at its end."""

    name: str
    parts: tuple[Part, ...]
    number: str


@dataclass(frozen=True)
class Ranking:
    """Bars on one scale, the largest first."""

    title: str
    says: str
    rows: tuple[Ranked, ...]
    table: Table
    legend: tuple[tuple[str, str], ...] = ()
    note: str = ""


def chart(what: Chart, name: str) -> str:
    """A section with the drawing at the page's whole width. `name` is its own on the page."""
    drawn = "".join(over_time(what, width, f"{name}-{width}") for width in (BROAD, NARROW))
    legend = tuple((series.tone, series.name) for series in what.series)
    return (
        head(what.title, what.says, legend if len(legend) > 1 else ())
        + f"<figure>{drawn}</figure><details><summary>The numbers</summary>{html_page.table(what.table)}</details>"
        + foot(what.note)
    )


def ranking(what: Ranking, name: str) -> str:
    """A section with the bars and, beside them, the table. `name` is its own on the page."""
    drawn = "".join(ranked(what, width, f"{name}-{width}") for width in (WIDE, NARROW))
    return (
        head(what.title, what.says, what.legend)
        + f'<div class="pair"><figure>{drawn}</figure><div>{html_page.table(what.table)}</div></div>'
        + foot(what.note)
    )


def head(title: str, says: str, legend: Sequence[tuple[str, str]]) -> str:
    key = "".join(f'<li class="{tone}">{escape(name)}</li>' for tone, name in legend)
    return f'<section><h2>{escape(title)}</h2><p class="says">{escape(says)}</p>' + (
        f'<ul class="key" aria-hidden="true">{key}</ul>' if key else ""
    )


def foot(note: str) -> str:
    return (f'<p class="note">{escape(note)}</p>' if note else "") + "</section>"


def over_time(what: Chart, width: int, name: str) -> str:
    """One drawing: a scale on the left, time below."""
    height, below, top = (280, 26, 14) if width == BROAD else (220, 26, 14)
    highest = max([*heights(what), *(level.value for level in what.levels)], default=0)
    ticks = scale(highest)
    left = max(len(short(tick)) for tick in ticks) * LETTER + 10
    room, floor = width - left - 4, height - below

    def y(value: float) -> float:
        return floor - (floor - top) * value / ticks[-1]

    drawn = [
        f'<line class="grid" x1="{left:g}" x2="{width}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>'
        f'<text class="label" x="{left - 8:g}" y="{y(tick) + 4:.1f}" text-anchor="end">{short(tick)}</text>'
        for tick in ticks
    ]
    count = max(len(what.labels), 1)
    step = room / count
    if what.lines:
        drawn += [polyline(each, left + step / 2, step, y) for each in what.series]
    else:
        drawn += columns(what, left, step, y)
    for level in what.levels:
        drawn.append(
            f'<line class="rule" x1="{left:g}" x2="{width}" y1="{y(level.value):.1f}" y2="{y(level.value):.1f}"/>'
            f'<text class="ruled" x="{width}" y="{y(level.value) + 15:.1f}" text-anchor="end">{escape(level.words)}</text>'
        )
    drawn += labels(what.labels, left, step, width, height)
    return svg(what.title, what.says, width, height, name, drawn)


def heights(what: Chart) -> list[float]:
    if what.lines:
        return [value for series in what.series for value in series.values if value is not None]
    return [
        sum(value or 0 for value in stack) for stack in zip(*(s.values for s in what.series), strict=True)
    ]


def columns(what: Chart, left: float, step: float, y: Callable[[float], float]) -> list[str]:
    drawn = []
    for at in range(len(what.labels)):
        base = 0.0
        for series in what.series:
            value = series.values[at] or 0
            if not value:
                continue
            # What is there is never invisible.
            high = max(y(base) - y(base + value), 1.0)
            gap = min(step * 0.2, 3)
            drawn.append(
                f'<rect class="{series.tone}" x="{left + at * step + gap / 2:.1f}" y="{y(base) - high:.1f}" '
                f'width="{max(step - gap, 1):.1f}" height="{high:.1f}"/>'
            )
            base += value
    return drawn


def polyline(series: Series, first: float, step: float, y: Callable[[float], float]) -> str:
    """One line, broken where nothing is known; a value alone is a dot."""
    drawn, run = [], list[str]()
    for at, value in enumerate([*series.values, None]):
        if value is not None:
            run.append(f"{first + at * step:.1f},{y(value):.1f}")
            continue
        if len(run) == 1:
            x, height = run[0].split(",")
            drawn.append(f'<circle class="{series.tone}" cx="{x}" cy="{height}" r="3"/>')
        elif run:
            drawn.append(f'<polyline class="{series.tone}" points="{" ".join(run)}"/>')
        run = []
    return "".join(drawn)


def labels(words: Sequence[str], left: float, step: float, width: int, height: int) -> list[str]:
    """As many as fit, evenly; the first and the last keep inside the drawing."""
    if not words:
        return []
    longest = max(len(word) for word in words) * LETTER + 28
    every = max(1, math.ceil(longest / step))
    drawn = []
    for at in range(0, len(words), every):
        middle = left + (at + 0.5) * step
        half = len(words[at]) * LETTER / 2
        x = min(max(middle, left + half), width - half) if len(words) > 1 else middle
        drawn.append(
            f'<text class="label" x="{x:.1f}" y="{height - 6}" text-anchor="middle">{escape(words[at])}</text>'
        )
    return drawn


def ranked(what: Ranking, width: int, name: str) -> str:
    """One drawing: each name above its bar."""
    largest = max((sum(part.value for part in row.parts) for row in what.rows), default=0) or 1
    numbers = max((len(row.number) for row in what.rows), default=0) * LETTER + 10
    room, drawn, top = width - numbers, list[str](), 0.0
    for row in what.rows:
        drawn.append(
            f'<text class="label" x="0" y="{top + 15:g}">{escape(clipped(row.name, int(width / LETTER)))}</text>'
        )
        at = 0.0
        for part in row.parts:
            length = part.value * room / largest
            if length:
                drawn.append(
                    f'<rect class="{part.tone}" x="{at:.1f}" y="{top + 21:g}" '
                    f'width="{max(length - 1, 1.5):.1f}" height="13" rx="3"/>'
                )
            at += length
        drawn.append(f'<text class="value" x="{at + 8:.1f}" y="{top + 32:g}">{escape(row.number)}</text>')
        top += 44
    return svg(what.title, what.says, width, top, name, drawn)


def clipped(name: str, room: int) -> str:
    """The name in so many letters: its beginning and its end, for names of queues often differ there."""
    if len(name) <= room:
        return name
    end = room // 3
    return f"{name[: room - end - 1]}…{name[-end:]}"


def svg(title: str, says: str, width: int, height: float, name: str, drawn: Sequence[str]) -> str:
    kind = "narrow" if width == NARROW else "wide"
    return (
        f'<svg class="{kind}" viewBox="0 0 {width} {height:g}" role="img" aria-labelledby="{name}t {name}d">'
        f'<title id="{name}t">{escape(title)}</title><desc id="{name}d">{escape(says)}</desc>{"".join(drawn)}</svg>'
    )


def scale(highest: float) -> list[float]:
    """0 and at most five round numbers; the last is not below the highest."""
    if highest <= 0:
        return [0, 1]
    rough = highest / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(each * power for each in (1, 2, 2.5, 5, 10) if each * power >= rough)
    return [step * at for at in range(math.ceil(highest / step - 1e-9) + 1)]


def short(number: float) -> str:
    """`950`, `12k`, `1.5M`: for a scale."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= limit:
            return f"{number / limit:g}{unit}"
    return f"{number:g}"
