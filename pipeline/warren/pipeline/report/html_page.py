"""Self-contained HTML page: bar charts as inline SVG with their tables, for light and dark, wide and narrow screens.

The page contains no script, font or image from elsewhere; its own content security policy forbids them. Every chart is
drawn twice, for a desktop and for a phone, because text in an SVG shrinks with it; the style sheet shows the one that
fits.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape

WIDE, NARROW = 620, 330
ROW = 34
LETTER = 8.2
"""Approximate width of a letter in SVG units, by which the room for labels is estimated; few letters are wider."""


@dataclass(frozen=True)
class BarPart:
    """Coloured part of a bar. `value` decides its length; `tone` names its colour, a class of the style sheet: good,
    late, off, warn or plain.
    """

    value: float
    tone: str
    name: str


@dataclass(frozen=True)
class BarRow:
    """Bar with its label. `note` is the text at its end; `emphasised` prints label and note bold."""

    label: str
    parts: tuple[BarPart, ...]
    note: str = ""
    emphasised: bool = False


@dataclass(frozen=True)
class Divider:
    """Horizontal line between two bars, with a text."""

    words: str


@dataclass(frozen=True)
class Table:
    """Table of a report; the cells are text, and the first column names the row."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    emphasised: int | None = None
    """Index of the row that is printed bold."""


@dataclass(frozen=True)
class Figure:
    """Bar chart with one bar for each row, a description, and a table of the numbers.

    The bars are drawn to one scale or, with `fills_width`, each as wide as the chart.
    """

    title: str
    description: str
    rows: tuple[BarRow | Divider, ...]
    table: Table
    legend: tuple[tuple[str, str], ...] = ()
    """Pairs of the name of a colour (good, late, off, warn or plain) and its meaning."""
    fills_width: bool = False
    """True if each bar fills the width, which shows shares instead of counts."""
    note: str = ""
    extra_table: Table | None = None
    """Table with the numbers of the bars, shown collapsed. Needed if `table` shows something else."""


@dataclass(frozen=True)
class Tile:
    """Important number with its label, shown at the top of the page."""

    number: str
    words: str
    tone: str = "plain"


def page(title: str, lead: str, tiles: Sequence[Tile], sections: Sequence[str], foot: Sequence[str]) -> str:
    """Return the whole HTML page of a report.

    :param title: heading, as plain text
    :param lead: introduction, as plain text
    :param tiles: important numbers, shown below the introduction
    :param sections: HTML made by the functions of this module and of `charts`
    :param foot: lines of the footer, as plain text
    """
    cards = "".join(
        f'<li class="tile {tile.tone}"><strong>{escape(tile.number)}</strong><span>{escape(tile.words)}</span></li>'
        for tile in tiles
    )
    last = "".join(f"<p>{escape(line)}</p>" for line in foot)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>\n<body><main>"
        f'<header><h1>{escape(title)}</h1><p class="lead">{escape(lead)}</p></header>\n'
        f'<ul class="tiles">{cards}</ul>\n'
        + "\n".join(sections)
        + f"\n<footer>{last}</footer></main></body></html>\n"
    )


def figure(figure_data: Figure, name: str) -> str:
    """Return the HTML section of a bar chart: description, bars, and the table beside them.

    :param name: prefix for element ids, unique on the page
    """
    key = "".join(f'<li class="{tone}">{escape(name)}</li>' for tone, name in figure_data.legend)
    drawn = "".join(bars_svg(figure_data, width, f"{name}-{width}") for width in (WIDE, NARROW))
    extra_table = (
        ""
        if figure_data.extra_table is None
        else f"<details><summary>All numbers</summary>{table(figure_data.extra_table)}</details>"
    )
    return (
        f'<section><h2>{escape(figure_data.title)}</h2><p class="says">{escape(figure_data.description)}</p>'
        + (f'<ul class="key" aria-hidden="true">{key}</ul>' if key else "")
        + f'<div class="pair"><figure>{drawn}</figure><div>{table(figure_data.table)}{extra_table}</div></div>'
        + (f'<p class="note">{escape(figure_data.note)}</p>' if figure_data.note else "")
        + "</section>"
    )


def notice_section(title: str, lines: Sequence[str], tone: str) -> str:
    """Return an HTML section with a title and a list of sentences, such as the problems that a job found.

    :param title: heading, as plain text
    :param lines: sentences, as plain text
    :param tone: colour of the section: good, late, off, warn or plain
    """
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f'<section class="notice {tone}"><h2>{escape(title)}</h2><ul>{items}</ul></section>'


def table(figure_data: Table) -> str:
    """Return a table as an HTML `<table>` element."""
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in figure_data.head)
    body = "".join(
        f"<tr{' class=strong' if at == figure_data.emphasised else ''}>"
        f'<th scope="row">{escape(row[0])}</th>'
        + "".join(f"<td>{escape(keep_unit_with_number(cell))}</td>" for cell in row[1:])
        + "</tr>"
        for at, row in enumerate(figure_data.rows)
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def keep_unit_with_number(cell: str) -> str:
    """Join each number and its unit in a table cell with a non-breaking space: `1 h 8 min` may wrap only after `h`."""
    return re.sub(r"(?<=\d) (?=[a-zµ%])", "\u00a0", cell)


def bars_svg(figure_data: Figure, width: int, name: str) -> str:
    """Return the SVG of a bar chart: labels on the left, bars from a common line, notes at their ends.

    :param width: width in SVG units, `WIDE` or `NARROW`
    :param name: prefix for element ids, unique on the page
    """
    rows = [row for row in figure_data.rows if isinstance(row, BarRow)]
    height = ROW if len(rows) > 1 else 2 * ROW
    labels = max((len(row.label) for row in rows), default=0)
    left = labels * LETTER + 12 if labels else 0
    # Labels that would take half of the width are written above their bars.
    above = left > width * 0.45
    left = 0 if above else left
    right = 0 if figure_data.fills_width else max((len(row.note) for row in rows), default=0) * LETTER + 10
    room = width - left - right
    largest = max((sum(part.value for part in row.parts) for row in rows), default=0) or 1
    drawn, top = [], 4.0
    for row in figure_data.rows:
        if isinstance(row, Divider):
            drawn.append(
                f'<line class="rule" x1="0" x2="{width}" y1="{top + 8:g}" y2="{top + 8:g}"/>'
                f'<text class="ruled" x="{width}" y="{top + 23:g}" text-anchor="end">{escape(row.words)}</text>'
            )
            top += 30
            continue
        scale = room / ((sum(part.value for part in row.parts) or 1) if figure_data.fills_width else largest)
        if above:
            drawn.append(f'<text class="label" x="0" y="{top + 15:g}">{escape(row.label)}</text>')
            row, top = replace(row, label=""), top + 14
        drawn.append(one_bar(row, left, top, height, scale))
        top += height
    return (
        f'<svg class="{"wide" if width == WIDE else "narrow"}" viewBox="0 0 {width} {top:g}" role="img" '
        f'aria-labelledby="{name}t {name}d"><title id="{name}t">{escape(figure_data.title)}</title>'
        f'<desc id="{name}d">{escape(figure_data.description)}</desc>{"".join(drawn)}</svg>'
    )


def one_bar(row: BarRow, left: float, top: float, height: float, scale: float) -> str:
    """Return the SVG of one bar, with its label on the left and its note at its end.

    :param left: x coordinate at which the bar begins
    :param top: y coordinate of the row
    :param height: height of the row, of which the bar leaves 14 units free
    :param scale: SVG units for each unit of a bar's value
    """
    middle = top + height / 2 + 5
    emphasised = " strong" if row.emphasised else ""
    drawn = [
        f'<text class="label{emphasised}" x="{left - 12:g}" y="{middle:g}" text-anchor="end">{escape(row.label)}</text>'
    ]
    at = left
    for part in row.parts:
        length = part.value * scale
        if not length:
            continue
        # A gap of one unit separates the segments for readers who cannot tell colours apart; a value above 0 is visible.
        drawn.append(
            f'<rect class="{part.tone}{emphasised}" x="{at:.1f}" y="{top + 7:g}" '
            f'width="{max(length - 1, 1.5):.1f}" height="{height - 14:g}" rx="3"/>'
        )
        if part.name and length > len(part.name) * LETTER + 8:
            drawn.append(
                f'<text class="inside {part.tone}" x="{at + 7:.1f}" y="{middle:g}">{escape(part.name)}</text>'
            )
        at += length
    if row.note:
        drawn.append(
            f'<text class="value{emphasised}" x="{at + 8:.1f}" y="{middle:g}">{escape(row.note)}</text>'
        )
    return "".join(drawn)


STYLE = """
:root{--paper:#f6f5f1;--card:#fffefb;--ink:#1d2426;--soft:#5b6669;--line:#dedbd2;
--good:#1f7a6b;--late:#c9791a;--off:#8c96a3;--warn:#b3362b;--plain:#3d5a80;
--on-good:#fff;--on-late:#1d1302;--on-off:#11161b;--on-warn:#fff;--on-plain:#fff}
@media(prefers-color-scheme:dark){:root{--paper:#14181a;--card:#1c2224;--ink:#e8e6df;--soft:#a2abad;--line:#313a3d;
--good:#4fb8a3;--late:#e8a548;--off:#77828f;--warn:#ef7b6e;--plain:#8fb0dc;
--on-good:#06211c;--on-late:#241502;--on-off:#0b0e11;--on-warn:#2a0703;--on-plain:#081627}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
main{max-width:1060px;margin:0 auto;padding:48px 24px 40px}
h1{font-size:clamp(28px,5vw,42px);line-height:1.12;letter-spacing:-.02em;margin:0;font-weight:700;text-wrap:balance}
.lead{font-size:18px;color:var(--soft);margin:14px 0 0;max-width:62ch}
h1,.lead,.says,.note{overflow-wrap:anywhere}
.tiles{list-style:none;display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:12px;
margin:32px 0 20px;padding:0}
.tile{background:var(--card);border:1px solid var(--line);border-top:4px solid var(--tone);
border-radius:10px;padding:14px 16px 16px}
.tile strong{display:block;font-size:30px;line-height:1.15;letter-spacing:-.02em;font-variant-numeric:tabular-nums}
.tile span{color:var(--soft);font-size:14px;line-height:1.35;display:block;margin-top:4px}
.good{--tone:var(--good)}.late{--tone:var(--late)}.off{--tone:var(--off)}.warn{--tone:var(--warn)}.plain{--tone:var(--plain)}
section{background:var(--card);border:1px solid var(--line);border-radius:14px;padding:26px 28px 24px;margin:20px 0}
h2{font-size:21px;letter-spacing:-.01em;line-height:1.25;margin:0}
.says{color:var(--soft);margin:6px 0 16px;max-width:70ch}
.note{color:var(--soft);font-size:14px;margin:14px 0 0}
.key{list-style:none;display:flex;flex-wrap:wrap;gap:6px 20px;margin:0 0 8px;padding:0;font-size:14px}
.key li::before{content:"";display:inline-block;width:12px;height:12px;border-radius:3px;
background:var(--tone);margin-right:7px}
.pair{display:grid;grid-template-columns:minmax(0,1.65fr) minmax(250px,1fr);gap:32px;align-items:start}
.pair>div,details{overflow-x:auto}
figure{margin:0}svg{display:block;width:100%;height:auto;font:13.5px system-ui,-apple-system,"Segoe UI",sans-serif}
svg.narrow{display:none}
svg text{fill:var(--ink);font-variant-numeric:tabular-nums}svg .label{fill:var(--soft)}
svg .label.strong,svg .value.strong{fill:var(--ink);font-weight:650}
svg rect{fill:var(--tone)}svg .rule{stroke:var(--ink);stroke-width:1.2;stroke-dasharray:2 4}
svg .ruled{fill:var(--ink);font-weight:650;font-size:12.5px}
svg .grid{stroke:var(--line)}svg polyline{fill:none;stroke:var(--tone);stroke-width:2.2;stroke-linejoin:round}
svg circle{fill:var(--tone)}
svg .inside.good{fill:var(--on-good)}svg .inside.late{fill:var(--on-late)}svg .inside.off{fill:var(--on-off)}
svg .inside.warn{fill:var(--on-warn)}svg .inside.plain{fill:var(--on-plain)}
table{border-collapse:collapse;width:100%;font-size:14px;font-variant-numeric:tabular-nums}
th,td{padding:5px 0 5px 10px;border-bottom:1px solid var(--line);text-align:right;font-weight:400}
th:first-child{text-align:left;padding-left:0;overflow-wrap:anywhere;min-width:11ch}
thead th{color:var(--soft);font-size:12.5px;vertical-align:bottom}
details{margin-top:16px;font-size:14px}summary{cursor:pointer;color:var(--soft);margin-bottom:6px}
tr:last-child>*{border-bottom:0}tr.strong>*{font-weight:650}
.notice{border-left:5px solid var(--tone)}
.notice ul{margin:10px 0 0;padding-left:20px}.notice li{margin:4px 0;overflow-wrap:anywhere}
footer{color:var(--soft);font-size:13.5px;margin-top:28px}footer p{margin:3px 0;overflow-wrap:anywhere}
@media(max-width:820px){main{padding:28px 14px}section{padding:20px 16px}.pair{grid-template-columns:minmax(0,1fr);gap:18px}
.tiles{grid-template-columns:1fr 1fr;margin:22px 0 14px}.tile strong{font-size:25px}}
@media(max-width:560px){th,td{padding-left:6px}th:first-child{min-width:8ch}svg.wide{display:none}svg.narrow{display:block}}
@media print{body{background:#fff}section,.tile{break-inside:avoid}}
""".strip()
