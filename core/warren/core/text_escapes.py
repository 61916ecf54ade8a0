"""Escapes of characters that control a terminal or forge a line: in text for people, in JSON and in logs.

Text from messages may contain anything. A terminal obeys control characters (C0, DEL, C1), reorders text at bidirectional
controls, and shows zero-width characters not at all; an encoding may lack a lone surrogate. All of them are escaped: `\\t`,
`\\n`, `\\r`, `\\xNN` or `\\uNNNN`. All other characters stay as they are, joiners of emoji and accents included.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any, Final

_INVISIBLE: Final = (
    r"\x7f-\x9f\xad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
)
"""Characters above the C0 controls that are escaped, as the inside of a character class."""
_SHORT: Final = {"\t": r"\t", "\n": r"\n", "\r": r"\r"}

_LINE: Final = re.compile(rf"[\x00-\x1f{_INVISIBLE}]")
_LINES: Final = re.compile(rf"[\x00-\x08\x0b-\x1f{_INVISIBLE}]")
_VALUE: Final = re.compile(rf"\\(?=[\\xuUtnr\x00-\x1f{_INVISIBLE}])|[\x00-\x1f{_INVISIBLE}]")
_JSON: Final = re.compile(rf"[{_INVISIBLE}]")
_JSON_ASCII: Final = re.compile(r"[^\x00-\x7e]")


def escape(text: str) -> str:
    """Return a line of text with its control and invisible characters escaped, line breaks and tabs included."""
    return _LINE.sub(_escaped, text)


def escape_lines(text: str) -> str:
    """Return a text of several lines with its control and invisible characters escaped, except line breaks and tabs."""
    return _LINES.sub(_escaped, text)


def escape_value(text: str) -> str:
    """Return a value, such as the id of a message, escaped so that different values never look the same.

    In addition to what `escape` does, a backslash that would look like the beginning of an escape is doubled.
    """
    return _VALUE.sub(_escaped, text)


def json_text(
    value: Any, *, indent: int | None = None, compact: bool = False, ascii_only: bool = False
) -> str:
    """Return a value as JSON that every parser reads and that is harmless on a terminal.

    The numbers that JSON lacks are the texts `NaN`, `Infinity` and `-Infinity`. Lone surrogates, control characters and
    invisible characters are `\\uNNNN`. A value without a JSON form is its `str`.

    :param indent: number of blanks for each level; None for one line.
    :param compact: leave out the blanks after `,` and `:`.
    :param ascii_only: escape all characters beyond ASCII, for an output whose encoding is not UTF-8.
    """
    separators = (",", ":") if compact else None
    options: dict[str, Any] = {"indent": indent, "separators": separators, "ensure_ascii": ascii_only}
    try:
        text = json.dumps(value, default=str, allow_nan=False, **options)
    except ValueError:
        text = json.dumps(_finite(value), default=str, allow_nan=False, **options)
    return escape_json(text)


def escape_json(text: str, *, ascii_only: bool = False) -> str:
    """Return a JSON text with the characters inside its strings escaped that control a terminal or are invisible.

    :param ascii_only: escape all characters beyond ASCII.
    """
    return (_JSON_ASCII if ascii_only else _JSON).sub(_escaped_in_json, text)


def _escaped_in_json(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def _finite(value: Any) -> Any:
    """Return a value with its numbers that are not finite as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {_finite(name): _finite(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return value


def _escaped(found: re.Match[str]) -> str:
    character = found[0]
    if character == "\\":
        return r"\\"
    number = ord(character)
    return _SHORT.get(character) or (f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}")


__all__ = ["escape", "escape_json", "escape_lines", "escape_value", "json_text"]
