"""Encoding of large JSON values in small steps, between which the event loop serves clients."""

from __future__ import annotations

import json
from collections.abc import Generator
from typing import Final

from warren.broker.management.request import Json

ITEMS: Final = 50
"""Items of a list that are encoded in one step."""


def encode_in_steps(value: Json) -> Generator[None, None, bytes]:
    """Encode a value as `json.dumps` does; return it as the value of a generator that yields after each small step.

    Lists are divided into steps, unless they are items of another list.
    """
    pieces: list[str] = []
    yield from _encode(value, pieces)
    return "".join(pieces).encode()


def _encode(value: Json, pieces: list[str]) -> Generator[None, None, None]:
    if isinstance(value, dict):
        separator = "{"
        for name, member in value.items():
            pieces.append(f"{separator}{json.dumps(name)}: ")
            yield from _encode(member, pieces)
            separator = ", "
        pieces.append("}" if value else "{}")
    elif isinstance(value, list) and len(value) > ITEMS:
        separator = "["
        for start in range(0, len(value), ITEMS):
            pieces.append(separator + json.dumps(value[start : start + ITEMS])[1:-1])
            separator = ", "
            yield
        pieces.append("]")
    else:
        pieces.append(json.dumps(value))


__all__ = ["encode_in_steps"]
