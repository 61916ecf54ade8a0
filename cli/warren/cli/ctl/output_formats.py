"""Output formats of rabbitmqctl: tab-separated columns, JSON, CSV and a drawn table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from warren.core.command_output import display_width, output_can_write, output_is_utf8
from warren.core.text_escapes import escape_value, json_text

LINES: Final = "─│┌┬┐├┼┤└┴┘"
"""Horizontal and vertical line of a drawn table, then its corners and crossings from the top left to the bottom right."""
ASCII_LINES: Final = "-|+++++++++"
"""The same for an output whose encoding lacks them."""


def format_result(result: Any, formatter: str, headers: bool) -> Iterator[str]:
    """Yield the lines of a result.

    :param result: JSON value that the broker returned; an object with `columns` and `rows` is a table
    :param formatter: `table` (tab-separated), `pretty_table` (drawn), `csv` or `json`
    :param headers: True for a first line with the names of the columns
    """
    if isinstance(result, dict) and "columns" in result and "rows" in result:
        yield from _table(result["columns"], result["rows"], formatter, headers)
    elif formatter == "json":
        yield json_text(result, indent=None if isinstance(result, str) else 2, ascii_only=True)
    elif isinstance(result, dict):
        yield from _sections(result)
    elif result is not None:
        yield str(result)


def _table(columns: list[str], rows: list[list[Any]], formatter: str, headers: bool) -> Iterator[str]:
    if formatter == "json":
        # One row on each line, as RabbitMQ prints it, for line-oriented tools.
        yield "["
        for index, row in enumerate(rows):
            pairs = json_text(
                dict(zip(columns, row, strict=True)), compact=True, ascii_only=not output_is_utf8()
            )
            yield ("," if index else "") + pairs
        yield "]"
        return
    texts = [[format_value(value) for value in row] for row in rows]
    if formatter == "csv":
        if headers:
            yield ",".join(_quoted(column) for column in columns)
        yield from (",".join(_quoted(text) for text in row) for row in texts)
    elif formatter == "pretty_table":
        yield from _drawn(columns, texts)
    else:
        if headers and rows:
            yield "\t".join(columns)
        yield from ("\t".join(row) for row in texts)


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


def _drawn(columns: list[str], rows: list[list[str]]) -> Iterator[str]:
    widths = [max(map(display_width, column)) for column in zip(columns, *rows, strict=True)]
    drawn = LINES if output_can_write("".join(LINES)) else ASCII_LINES
    line, side = drawn[0], drawn[1]
    corners = (drawn[2:5], drawn[5:8], drawn[8:11])
    bars = [line * (width + 2) for width in widths]
    top, middle, bottom = (f"{each[0]}{each[1].join(bars)}{each[2]}" for each in corners)
    yield top
    for index, row in enumerate([columns, *rows]):
        if index == 1:
            yield middle
        cells = (
            f" {text}{' ' * (width - display_width(text))} " for text, width in zip(row, widths, strict=True)
        )
        yield f"{side}{side.join(cells)}{side}"
    yield bottom


def _sections(result: dict[str, Any]) -> Iterator[str]:
    for title, content in result.items():
        if not isinstance(content, dict):
            yield f"{title}: {format_value(content)}"
            continue
        yield f"{title}\n"
        yield from (f"{name}: {format_value(value)}" for name, value in content.items())
        yield ""


def format_value(value: Any) -> str:
    """Format a JSON value as text for one column of a table: lists and objects as rabbitmqctl prints Erlang terms."""
    if isinstance(value, str):
        return escape_value(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        if value and all(isinstance(item, str) for item in value):
            return f"[{', '.join(format_value(item) for item in value)}]"
        return f"[{','.join(_term(item) for item in value)}]"
    if isinstance(value, dict):
        return f"[{','.join(f'{{{_term(key)},{_term(item)}}}' for key, item in value.items())}]"
    return str(value)


def _term(value: Any) -> str:
    """Format an item of a field table or field array as rabbitmqctl does, in Erlang's syntax.

    :param value: a field of a field table as [name, type, value], an item of a field array as [type, value], or a plain
        value
    """
    if isinstance(value, list) and len(value) == 3 and isinstance(value[0], str):
        return f"{{{_term(value[0])},{_content(value[1], value[2])}}}"
    if isinstance(value, list) and len(value) == 2 and isinstance(value[0], str):
        return _content(value[0], value[1])
    if isinstance(value, str):
        return f'"{format_value(value)}"'
    return format_value(value)


def _content(kind: str, value: Any) -> str:
    if kind in ("table", "array"):
        return f"[{','.join(_term(item) for item in value)}]"
    return _term(value)
