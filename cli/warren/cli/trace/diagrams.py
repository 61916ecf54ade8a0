"""Sequence diagrams of a story: as Mermaid, and as an HTML page with an SVG that loads nothing."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from warren.core.message_story import Story, clock

COLUMN = 210
ROW = 30
TOP = 70
MARGIN = 110
COLOURS = ("#1f6feb", "#1a7f37", "#9a6700", "#cf222e", "#8250df", "#bf3989", "#0550ae", "#116329")
LABEL_CHARACTERS = 28

STYLE = """body{font:14px sans-serif;margin:2em;color:#1f2328;background:#fff}td,th{text-align:left;padding:2px 12px 2px 0;
vertical-align:top}svg text{font:12px sans-serif;fill:#1f2328}svg .life{stroke:#8c959f;stroke-dasharray:3 4}
svg rect{fill:#f6f8fa;stroke:#8c959f}"""


def mermaid(story: Story) -> str:
    """Return the story as a Mermaid sequence diagram (https://mermaid.js.org/syntax/sequenceDiagram.html)."""
    return "\n".join(_mermaid_lines(story)) + "\n"


def _mermaid_lines(story: Story) -> Iterator[str]:
    yield "sequenceDiagram"
    aliases = {name: f"P{number}" for number, name in enumerate(story.participants, 1)}
    numbers = {message_id: f"M{number}" for number, message_id in enumerate(story.messages, 1)}
    for name, alias in aliases.items():
        yield f"    participant {alias} as {_mermaid_text(name)}"
    for step in story.steps:
        text = _mermaid_text(f"{numbers[step.message_id]} {step.text}")
        source, target = aliases[step.source], aliases[step.target]
        if source == target:
            yield f"    Note over {source}: {text}"
        else:
            yield f"    {source}{'-->>' if step.is_answer else '->>'}{target}: {text}"


def _mermaid_text(text: str) -> str:
    """Return a text without characters that end or change a line of Mermaid, written as its entity codes."""
    return "".join(
        letter if letter.isprintable() and letter not in '#;<>"%' else f"#{ord(letter)};" for letter in text
    )


def html_page(story: Story, title: str) -> str:
    """Return the story as one HTML page: the messages, a sequence diagram as SVG, and the steps as a table.

    The page has no script and loads nothing. Names and texts of messages are escaped.
    """
    numbers = {message_id: f"M{number}" for number, message_id in enumerate(story.messages, 1)}
    messages = "".join(
        f"<tr><td>{numbers[each]}</td><td><code>{escape(each)}</code></td>"
        f"<td>{f'caused by {escape(numbers.get(cause, cause))}' if cause else ''}</td></tr>"
        for each, cause in story.messages.items()
    )
    steps = "".join(
        f"<tr><td>{clock(step.at)}</td><td>{numbers[step.message_id]}</td><td>{escape(step.source)}</td>"
        f"<td>{escape(step.target) if step.target != step.source else ''}</td><td>{escape(step.text)}</td></tr>"
        for step in story.steps
    )
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{STYLE}</style></head><body><h1>{escape(title)}</h1><table>{messages}</table>\n{svg(story)}\n"
        "<table><tr><th>time (UTC)</th><th>message</th><th>from</th><th>to</th><th>step</th></tr>"
        f"{steps}</table></body></html>\n"
    )


def svg(story: Story) -> str:
    """Return the sequence diagram of a story as an SVG element: a column for each participant, a row for each step."""
    columns = {name: MARGIN + COLUMN * index for index, name in enumerate(story.participants)}
    order = list(story.messages)
    width = 2 * MARGIN + COLUMN * max(len(columns) - 1, 0)
    height = TOP + ROW * (len(story.steps) + 1)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
        f' viewBox="0 0 {width} {height}" role="img">'
    ]
    for name, x in columns.items():
        parts.append(f'<line class="life" x1="{x}" y1="40" x2="{x}" y2="{height}"/>')
        parts.append(f'<rect x="{x - 95}" y="10" width="190" height="30" rx="4"/>')
        parts.append(f'<text x="{x}" y="30" text-anchor="middle">{_label(name)}</text>')
    for row, step in enumerate(story.steps):
        index = order.index(step.message_id)
        colour = COLOURS[index % len(COLOURS)]
        parts += _svg_step(
            columns[step.source],
            columns[step.target],
            TOP + ROW * row,
            f"M{index + 1} {step.text}",
            colour,
            step.is_answer,
        )
    return "".join([*parts, "</svg>"])


def _svg_step(start: int, end: int, y: int, text: str, colour: str, dashed: bool) -> Iterator[str]:
    yield f"<g><title>{escape(text)}</title>"
    if start == end:
        yield f'<circle cx="{start}" cy="{y}" r="4" fill="{colour}"/>'
        yield f'<text x="{start + 9}" y="{y + 4}">{_label(text)}</text></g>'
        return
    stroke = ' stroke-dasharray="6 4"' if dashed else ""
    head = -8 if end > start else 8
    yield f'<line x1="{start}" y1="{y}" x2="{end}" y2="{y}" stroke="{colour}" stroke-width="1.5"{stroke}/>'
    yield f'<path d="M{end} {y} l{head} -4 v8 z" fill="{colour}"/>'
    yield f'<text x="{(start + end) / 2}" y="{y - 5}" text-anchor="middle">{_label(text)}</text></g>'


def _label(text: str) -> str:
    return escape(text if len(text) <= LABEL_CHARACTERS else f"{text[: LABEL_CHARACTERS - 1]}…")
