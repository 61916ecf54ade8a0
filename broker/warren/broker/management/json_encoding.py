"""Decoding of JSON values, and encoding, for large ones in small steps, between which the event loop serves clients."""

from __future__ import annotations

import json
from collections.abc import Generator
from math import isinf
from typing import Final

from warren.broker.management.request import Json

ITEMS: Final = 16
"""Items of a list that are encoded in one step."""
PART: Final = 65536
"""Characters from which on encoded text becomes a part of its own."""
COMPACT: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)
COMPACT_ASCII: Final = json.JSONEncoder(separators=(",", ":"))


def decode(text: str | bytes) -> Json:
    """Return the JSON value of a text.

    :raises ValueError: if it is none: nor if it has NaN or an infinite number, which the standard library takes; with
        a text in one line
    """
    try:
        return json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def _refuse_constant(name: str) -> float:
    raise ValueError(f"JSON has no {name}")


def _finite(text: str) -> float:
    number = float(text)
    if isinf(number):
        raise ValueError(f"the number {text[:40]} is too large")
    return number


def encode(value: Json, *, ascii_only: bool = False) -> bytes:
    """Encode a value without spaces, as RabbitMQ does.

    :param ascii_only: True to escape all other characters, so that names that are not UTF-8 are kept; else the text is
        UTF-8, with `?` for each byte of such a name.
    """
    return (COMPACT_ASCII if ascii_only else COMPACT).encode(value).encode(errors="replace")


def encode_in_steps(value: Json, *, ascii_only: bool = False) -> Generator[None, None, list[bytes]]:
    """Encode a value as `encode` does; return parts of the text as the value of a generator that yields after each step.

    A step encodes some items of a list, unless the list is itself in such an item.
    """
    text = _Text(COMPACT_ASCII if ascii_only else COMPACT)
    yield from _encode(value, text)
    return text.parts()


class _Text:
    """Encoded text in parts of a moderate size."""

    def __init__(self, encoder: json.JSONEncoder) -> None:
        self.encoder = encoder
        self._parts: list[bytes] = []
        self._pieces: list[str] = []
        self._size = 0

    def add(self, piece: str) -> None:
        self._pieces.append(piece)
        self._size += len(piece)
        if self._size >= PART:
            self._join()

    def _join(self) -> None:
        self._parts.append("".join(self._pieces).encode(errors="replace"))
        self._pieces, self._size = [], 0

    def parts(self) -> list[bytes]:
        if self._pieces:
            self._join()
        return self._parts


class ListText:
    """Encoded text of a list, whose items are added one by one, so that they need not be in memory together."""

    def __init__(self) -> None:
        self._text = _Text(COMPACT)
        self._separator = "["

    def add(self, item: Json) -> None:
        """Encode an item, and add it to the end of the list."""
        self._text.add(self._separator + COMPACT.encode(item))
        self._separator = ","

    def parts(self) -> list[bytes]:
        """Return the text in parts, once all items were added."""
        self._text.add("[]" if self._separator == "[" else "]")
        return self._text.parts()


def _encode(value: Json, text: _Text) -> Generator[None, None, None]:
    encoder = text.encoder
    if isinstance(value, dict) and value:
        separator = "{"
        for name, member in value.items():
            text.add(f"{separator}{encoder.encode(name)}:")
            yield from _encode(member, text)
            separator = ","
        text.add("}")
    elif isinstance(value, list) and value:
        separator = "["
        for start in range(0, len(value), ITEMS):
            text.add(separator + encoder.encode(value[start : start + ITEMS])[1:-1])
            separator = ","
            yield
        text.add("]")
    else:
        text.add(encoder.encode(value))
