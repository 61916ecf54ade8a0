"""Output formats of rabbitmqctl: tab-separated columns, JSON, CSV and a drawn table."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
"""Control characters, which are escaped: they would break a table's lines and columns, or control a terminal."""


def format_result(result: Any, formatter: str, headers: bool) -> Iterator[str]:
    """Yield the lines of a result.

    :param result: JSON value that the broker returned; an object with `columns` and `rows` is a table
    :param formatter: `table` (tab-separated), `pretty_table` (drawn), `csv` or `json`
    :param headers: True for a first line with the names of the columns
    """
    if isinstance(result, dict) and "columns" in result and "rows" in result:
        yield from _table(result["columns"], result["rows"], formatter, headers)
    elif formatter == "json":
        yield json.dumps(result, indent=None if isinstance(result, str) else 2)
    elif isinstance(result, dict):
        yield from _sections(result)
    elif result is not None:
        yield str(result)


def _table(columns: list[str], rows: list[list[Any]], formatter: str, headers: bool) -> Iterator[str]:
    if formatter == "json":
        # One row on each line, as RabbitMQ prints it, for line-oriented tools.
        yield "["
        for index, row in enumerate(rows):
            pairs = json.dumps(
                dict(zip(columns, row, strict=True)), separators=(",", ":"), ensure_ascii=False
            )
            yield ("," if index else "") + pairs.encode("utf-8", "replace").decode()
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
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    bars = ["─" * (width + 2) for width in widths]
    yield f"┌{'┬'.join(bars)}┐"
    for index, row in enumerate([columns, *rows]):
        if index == 1:
            yield f"├{'┼'.join(bars)}┤"
        yield f"│{'│'.join(f' {text:<{width}} ' for text, width in zip(row, widths, strict=True))}│"
    yield f"└{'┴'.join(bars)}┘"


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
        return CONTROL.sub(_escaped, value).encode("utf-8", "replace").decode()
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        if value and all(isinstance(item, str) for item in value):
            return f"[{', '.join(format_value(item) for item in value)}]"
        return f"[{','.join(_term(item) for item in value)}]"
    if isinstance(value, dict):
        return f"[{','.join(f'{{{_term(key)},{_term(item)}}}' for key, item in value.items())}]"
    return str(value)


def _escaped(found: re.Match[str]) -> str:
    return {"\t": "\\t", "\n": "\\n", "\r": "\\r"}.get(found[0], f"\\x{ord(found[0]):02x}")


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
