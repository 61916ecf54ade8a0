"""Rules of a key's position: its next number, and the numbers that were skipped."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from warren.patterns.stores import RuleResult

MAX_SKIPPED: Final = 100
"""Skipped ranges of a key that are remembered; older ones are forgotten."""


@dataclass(frozen=True, slots=True)
class Position:
    """Progress of a key.

    :ivar next_number: the next number to handle.
    :ivar skipped: first and last numbers of the latest skipped ranges.
    """

    next_number: int
    skipped: tuple[tuple[int, int], ...] = ()

    def was_skipped(self, number: int) -> bool:
        """Return whether the number was skipped."""
        return any(first <= number <= last for first, last in self.skipped)

    def skip_to(self, number: int) -> Position:
        """Return the position after skipping all numbers below `number`."""
        return Position(number, (*self.skipped, (self.next_number, number - 1))[-MAX_SKIPPED:])


def advance(record: bytes | None, *, position: Position, keep_ms: int) -> RuleResult[bytes | None]:
    """Store `position`, unless the stored one is further; the answer is the record that is stored then."""
    held = read(record)
    if held is not None and held.next_number > position.next_number:
        return RuleResult(record, record)
    written = json.dumps([position.next_number, position.skipped], separators=(",", ":")).encode()
    return RuleResult(written, written, keep_ms)


def read(record: bytes | None) -> Position | None:
    """Return the position of a record; None if there is none."""
    if record is None:
        return None
    next_number, skipped = json.loads(record)
    return Position(next_number, tuple((first, last) for first, last in skipped))


__all__ = ["Position", "advance", "read"]
