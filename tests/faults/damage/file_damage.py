"""Damage to one file: flipped bit, truncation, zeroed block, missing file, duplicated block, at a place drawn at random."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from random import Random

BLOCKS = (4096, 65536)
"""Bytes of a damaged block in a large file: a page of a file system, a block of the log."""
HEADER = 64
"""Bytes at the beginning of a file that count as its header."""
TAIL = 24
"""Bytes before the end of the data that lie within the last record."""


class DamageKind(Enum):
    """A column of the matrix."""

    FLIPPED_BIT = "flipped bit"
    TRUNCATED = "truncated"
    ZEROED_BLOCK = "zeroed block"
    MISSING = "missing"
    DUPLICATED_BLOCK = "duplicated block"


class Place(Enum):
    """Part of the file that is damaged."""

    HEADER = "header"
    MIDDLE = "middle"
    LAST_RECORD = "last record"


@dataclass(frozen=True)
class Damaged:
    """Description of a damage that was done to a file."""

    path: str
    """Path in the data folder."""
    kind: DamageKind
    place: Place
    text: str
    """Change in words, with its offset."""

    def __str__(self) -> str:
        return f"{self.path}: {self.text}"


def damage(folder: Path, path: str, kind: DamageKind, place: Place, random: Random) -> Damaged | None:
    """Damage a file of a data folder; return what was done, or None if the file offers no way to do it.

    Zeros at the end of the file, which are preallocated space, do not count as its data.
    """
    file = folder / path
    if kind is DamageKind.MISSING:
        file.unlink()
        return Damaged(path, kind, place, "removed")
    before = file.read_bytes()
    size = len(before.rstrip(b"\0")) or len(before)
    if size < 2:
        return None
    for _ in range(100):
        after, text = _CHANGES[kind](before, size, place, random)
        if after.rstrip(b"\0") != before.rstrip(b"\0"):
            file.write_bytes(after)
            return Damaged(path, kind, place, text)
    return None


def _offset(size: int, place: Place, random: Random) -> int:
    """Return an offset in the place, below `size`."""
    if place is Place.HEADER:
        return random.randrange(min(HEADER, size))
    if place is Place.LAST_RECORD:
        return random.randrange(max(0, size - TAIL), size)
    return random.randrange(min(HEADER, size // 3), max(size - TAIL, size * 2 // 3))


def _span(size: int, place: Place, random: Random) -> tuple[int, int]:
    """Return beginning and end of a block: aligned in a large file, else an eighth of the file."""
    at = _offset(size, place, random)
    if blocks := [block for block in BLOCKS if size >= 3 * block]:
        block = random.choice(blocks)
        first = at // block * block
        return first, min(first + block, size)
    length = max(4, size // 8)
    first = 0 if place is Place.HEADER else min(at, size - length)
    return max(0, first), max(0, first) + length


def _flip(before: bytes, size: int, place: Place, random: Random) -> tuple[bytes, str]:
    at, bit = _offset(size, place, random), random.randrange(8)
    after = bytearray(before)
    after[at] ^= 1 << bit
    return bytes(after), f"bit {bit} of byte {at} flipped"


def _truncate(before: bytes, size: int, place: Place, random: Random) -> tuple[bytes, str]:
    at = _offset(size, place, random)
    return before[:at], f"truncated from {len(before)} to {at} bytes"


def _zero(before: bytes, size: int, place: Place, random: Random) -> tuple[bytes, str]:
    first, end = _span(size, place, random)
    return before[:first] + bytes(end - first) + before[end:], f"bytes {first} to {end - 1} zeroed"


def _duplicate(before: bytes, size: int, place: Place, random: Random) -> tuple[bytes, str]:
    """Write a block a second time, over what follows it (a misdirected write) or before it."""
    first, end = _span(size, place, random)
    block = before[first:end]
    if random.random() < 0.5:
        return before[:end] + block + before[end:], f"bytes {first} to {end - 1} repeated"
    if end + len(block) > size:
        first = max(0, first - len(block))
        end = first + len(block)
        block = before[first:end]
    after = before[:end] + block + before[end + len(block) :]
    return after, f"bytes {first} to {end - 1} written over those behind them"


_CHANGES: dict[DamageKind, Callable[[bytes, int, Place, Random], tuple[bytes, str]]] = {
    DamageKind.FLIPPED_BIT: _flip,
    DamageKind.TRUNCATED: _truncate,
    DamageKind.ZEROED_BLOCK: _zero,
    DamageKind.DUPLICATED_BLOCK: _duplicate,
}
