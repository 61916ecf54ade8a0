"""Charts over time (columns or lines), and ranked bars with long labels, as HTML sections of a report page."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from warren.pipeline.report import html_page
from warren.pipeline.report.html_page import LETTER, NARROW, WIDE, BarPart, Table

BROAD = 960
"""Width in SVG units of a chart that takes the page's whole width. For phones it is drawn again `html_page.NARROW`
wide."""
TONES = ("plain", "late", "warn", "good", "off")
"""Names of colours (classes of the style sheet) for categories such as reasons, in order of use."""


@dataclass(frozen=True)
class Series:
    """Values that a chart shows as one line, or as one colour in stacked columns: one value for each step of time, None
    where it is unknown. `tone` names the colour, a class of the style sheet: good, late, off, warn or plain.
    """

    name: str
    tone: str
    values: tuple[float | None, ...]


@dataclass(frozen=True)
class LimitLine:
    """Horizontal line in a chart that marks a limit: its height on the value axis, and its label."""

    value: float
    words: str


@dataclass(frozen=True)
class Chart:
    """Chart of values over time, with one or more series: drawn as lines if `lines` is true, else as stacked columns."""

    title: str
    description: str
    labels: tuple[str, ...]
    """Labels of the time axis, one for each time step of the values; as many are drawn as fit."""
    series: tuple[Series, ...]
    table: Table
    """Table with the drawn values, which the page shows collapsed."""
    lines: bool = False
    levels: tuple[LimitLine, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class RankedBar:
    """Bar of a ranking: `name` is the label above it, `parts` its coloured segments, and `number` the text at its end."""

    name: str
    parts: tuple[BarPart, ...]
    number: str


@dataclass(frozen=True)
class Ranking:
    """Bar chart with one bar for each item, drawn to one scale, the largest first."""

    title: str
    description: str
    rows: tuple[RankedBar, ...]
    table: Table
    legend: tuple[tuple[str, str], ...] = ()
    note: str = ""


def chart(data: Chart, name: str) -> str:
    """Return the HTML section of a chart over time, at the page's whole width.

    :param name: prefix for element ids, unique on the page
    """
    drawn = "".join(time_chart_svg(data, width, f"{name}-{width}") for width in (BROAD, NARROW))
    legend = tuple((series.tone, series.name) for series in data.series)
    return (
        section_head(data.title, data.description, legend if len(legend) > 1 else ())
        + f"<figure>{drawn}</figure><details><summary>All numbers</summary>{html_page.table(data.table)}</details>"
        + section_foot(data.note)
    )


def ranking(data: Ranking, name: str) -> str:
    """Return the HTML section of a ranking, with its table beside the bars.

    :param name: prefix for element ids, unique on the page
    """
    drawn = "".join(ranking_svg(data, width, f"{name}-{width}") for width in (WIDE, NARROW))
    return (
        section_head(data.title, data.description, data.legend)
        + f'<div class="pair"><figure>{drawn}</figure><div>{html_page.table(data.table)}</div></div>'
        + section_foot(data.note)
    )


def section_head(title: str, description: str, legend: Sequence[tuple[str, str]]) -> str:
    """Return the HTML that begins a section: heading, description and legend.

    :param legend: pairs of the name of a colour (good, late, off, warn or plain) and its meaning
    """
    key = "".join(f'<li class="{tone}">{escape(name)}</li>' for tone, name in legend)
    return f'<section><h2>{escape(title)}</h2><p class="says">{escape(description)}</p>' + (
        f'<ul class="key" aria-hidden="true">{key}</ul>' if key else ""
    )


def section_foot(note: str) -> str:
    """Return the HTML that ends a section, with a note if there is one."""
    return (f'<p class="note">{escape(note)}</p>' if note else "") + "</section>"


def time_chart_svg(data: Chart, width: int, name: str) -> str:
    """Return the SVG of a chart over time: value axis on the left, time axis below.

    :param width: width in SVG units, `BROAD` or `NARROW`; it also decides the height
    :param name: prefix for element ids, unique on the page
    """
    height, below, top = (280, 26, 14) if width == BROAD else (220, 26, 14)
    highest = max([*heights(data), *(level.value for level in data.levels)], default=0)
    ticks = scale(highest)
    left = max(len(short_number(tick)) for tick in ticks) * LETTER + 10
    room, floor = width - left - 4, height - below

    def y(value: float) -> float:
        return floor - (floor - top) * value / ticks[-1]

    drawn = [
        f'<line class="grid" x1="{left:g}" x2="{width}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>'
        f'<text class="label" x="{left - 8:g}" y="{y(tick) + 4:.1f}" text-anchor="end">{short_number(tick)}</text>'
        for tick in ticks
    ]
    count = max(len(data.labels), 1)
    step = room / count
    if data.lines:
        drawn += [polyline(each, left + step / 2, step, y) for each in data.series]
    else:
        drawn += columns(data, left, step, y)
    for level in data.levels:
        drawn.append(
            f'<line class="rule" x1="{left:g}" x2="{width}" y1="{y(level.value):.1f}" y2="{y(level.value):.1f}"/>'
            f'<text class="ruled" x="{width}" y="{y(level.value) + 15:.1f}" text-anchor="end">{escape(level.words)}</text>'
        )
    drawn += labels(data.labels, left, step, width, height)
    return svg(data.title, data.description, width, height, name, drawn)


def heights(data: Chart) -> list[float]:
    """Return the values of which the highest decides the scale of the value axis: the values of all lines or, for
    stacked columns, the sum of each column.
    """
    if data.lines:
        return [value for series in data.series for value in series.values if value is not None]
    return [
        sum(value or 0 for value in stack) for stack in zip(*(s.values for s in data.series), strict=True)
    ]


def columns(data: Chart, left: float, step: float, y: Callable[[float], float]) -> list[str]:
    """Return the SVG rectangles of stacked columns.

    :param left: x coordinate of the first column
    :param step: distance of two columns
    :param y: converts a value to a y coordinate
    """
    drawn = []
    for at in range(len(data.labels)):
        base = 0.0
        for series in data.series:
            value = series.values[at] or 0
            if not value:
                continue
            # A value above 0 is never invisible.
            high = max(y(base) - y(base + value), 1.0)
            gap = min(step * 0.2, 3)
            drawn.append(
                f'<rect class="{series.tone}" x="{left + at * step + gap / 2:.1f}" y="{y(base) - high:.1f}" '
                f'width="{max(step - gap, 1):.1f}" height="{high:.1f}"/>'
            )
            base += value
    return drawn


def polyline(series: Series, first: float, step: float, y: Callable[[float], float]) -> str:
    """Return the SVG of one line, interrupted where values are unknown; a single value becomes a dot.

    :param first: x coordinate of the first value
    :param step: distance of two values
    :param y: converts a value to a y coordinate
    """
    drawn, points = [], list[str]()
    for at, value in enumerate([*series.values, None]):
        if value is not None:
            points.append(f"{first + at * step:.1f},{y(value):.1f}")
            continue
        if len(points) == 1:
            x, height = points[0].split(",")
            drawn.append(f'<circle class="{series.tone}" cx="{x}" cy="{height}" r="3"/>')
        elif points:
            drawn.append(f'<polyline class="{series.tone}" points="{" ".join(points)}"/>')
        points = []
    return "".join(drawn)


def labels(words: Sequence[str], left: float, step: float, width: int, height: int) -> list[str]:
    """Return the SVG of as many evenly spaced time labels as fit; the first and the last stay inside the drawing.

    :param words: label of each step of time
    :param left: x coordinate at which the first step begins
    :param step: width of a step in SVG units
    :param width: width of the drawing
    :param height: height of the drawing, at whose lower edge the labels are
    """
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


def ranking_svg(data: Ranking, width: int, name: str) -> str:
    """Return the SVG of a ranking, with each label above its bar.

    :param width: width in SVG units, `WIDE` or `NARROW`
    :param name: prefix for element ids, unique on the page
    """
    largest = max((sum(part.value for part in row.parts) for row in data.rows), default=0) or 1
    numbers = max((len(row.number) for row in data.rows), default=0) * LETTER + 10
    room, drawn, top = width - numbers, list[str](), 0.0
    for row in data.rows:
        drawn.append(
            f'<text class="label" x="0" y="{top + 15:g}">{escape(shorten_middle(row.name, int(width / LETTER)))}</text>'
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
    return svg(data.title, data.description, width, top, name, drawn)


def shorten_middle(name: str, room: int) -> str:
    """Shorten a queue's name to `room` characters in its middle, because queue names often differ at their ends."""
    if len(name) <= room:
        return name
    end = room // 3
    return f"{name[: room - end - 1]}…{name[-end:]}"


def svg(title: str, description: str, width: int, height: float, name: str, drawn: Sequence[str]) -> str:
    """Return an SVG element with its content, and a title and description for screen readers.

    :param width: width in SVG units, like `height`; the page shows an SVG of the width `NARROW` on phones only, and one
        of another width on desktops only
    :param name: prefix for element ids, unique on the page
    :param drawn: SVG elements that make up the content
    """
    kind = "narrow" if width == NARROW else "wide"
    return (
        f'<svg class="{kind}" viewBox="0 0 {width} {height:g}" role="img" aria-labelledby="{name}t {name}d">'
        f'<title id="{name}t">{escape(title)}</title><desc id="{name}d">{escape(description)}</desc>{"".join(drawn)}</svg>'
    )


def scale(highest: float) -> list[float]:
    """Return the values to mark on a value axis: 0 and at most four multiples of a round number, the last not below
    `highest`.
    """
    if highest <= 0:
        return [0, 1]
    rough = highest / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(each * power for each in (1, 2, 2.5, 5, 10) if each * power >= rough)
    return [step * at for at in range(math.ceil(highest / step - 1e-9) + 1)]


def short_number(number: float) -> str:
    """Format a number for a value axis: `950`, `12k`, `1.5M`."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= limit:
            return f"{number / limit:g}{unit}"
    return f"{number:g}"
