"""Rules of a resequencer's record of one key (its position): the next number to handle, and the numbers that were
skipped."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from warren.patterns.stores import RuleResult

MAX_SKIPPED: Final = 100
"""Number of ranges of skipped numbers that are stored for each key; older ranges are forgotten."""


@dataclass(frozen=True, slots=True)
class Position:
    """Progress of one key of a resequencer.

    :ivar next_number: the next number to handle.
    :ivar skipped: latest ranges of numbers that were skipped because their messages were not handled in time, each
        range as its first and last number.
    """

    next_number: int
    skipped: tuple[tuple[int, int], ...] = ()

    def was_skipped(self, number: int) -> bool:
        """Return whether the number was skipped, because its message was missing for too long. A message with this
        number must not be handled any more."""
        return any(first <= number <= last for first, last in self.skipped)

    def skip_to(self, number: int) -> Position:
        """Return the position with `number` as the next one, and all missing numbers before it as skipped."""
        return Position(number, (*self.skipped, (self.next_number, number - 1))[-MAX_SKIPPED:])


def advance(record: bytes | None, *, position: Position, keep_ms: int) -> RuleResult[bytes | None]:
    """Compute the record that stores `position`. A present record with a higher next number, which another process has
    stored, is left as it is.

    :param record: present record of the key; None if there is none.
    :param keep_ms: how long the key is remembered after this change, in milliseconds.
    :return: result with the record to store, which is also its `answer`.
    """
    held = read(record)
    if held is not None and held.next_number > position.next_number:
        return RuleResult(record, record)
    written = json.dumps([position.next_number, position.skipped], separators=(",", ":")).encode()
    return RuleResult(written, written, keep_ms)


def read(record: bytes | None) -> Position | None:
    """Decode the position from the store's record; None if there is no record."""
    if record is None:
        return None
    next_number, skipped = json.loads(record)
    return Position(next_number, tuple((first, last) for first, last in skipped))


__all__ = ["Position", "advance", "read"]
