"""Groups of dead letters by cause: how many letters have the same defect, since when, and one of them as an example."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from warren.patterns.dead_letters.cause import Cause
from warren.patterns.dead_letters.parked_message import ParkedMessage
from warren.patterns.dead_letters.parking_lot import ParkingLot
from warren.patterns.dead_letters.replay import find_each
from warren.patterns.dead_letters.selection import DeadLetterSelection


@dataclass(slots=True)
class DeadLetterGroup:
    """Dead letters with the same cause.

    :ivar cause: queue, message type, reason and normalised error that they share.
    :ivar count: number of letters.
    :ivar first: earliest time at which one of them was dead-lettered for the first time; None if no letter has a time.
    :ivar last: latest time at which one of them was dead-lettered; None if no letter has a time.
    :ivar example: id of the latest of them; empty if it has none.
    :ivar error: error text of that letter, as it was recorded.
    """

    cause: Cause
    count: int = 0
    first: datetime | None = None
    last: datetime | None = None
    example: str = ""
    error: str = ""

    @property
    def id(self) -> str:
        """Id of the group, for `DeadLetterSelection(group=...)`."""
        return self.cause.id

    def as_dict(self) -> dict[str, Any]:
        """Return the group as values for JSON output."""
        return {
            "group": self.id,
            "count": self.count,
            **self.cause._asdict(),
            "first": None if self.first is None else self.first.isoformat(),
            "last": None if self.last is None else self.last.isoformat(),
            "example": self.example,
            "example_error": self.error,
        }

    def _add(self, message: ParkedMessage) -> None:
        self.count += 1
        if message.first_death is not None and (self.first is None or message.first_death < self.first):
            self.first = message.first_death
        if message.last_death is None or self.last is None or message.last_death >= self.last:
            self.last = message.last_death or self.last
            self.example, self.error = message.message_id, message.error


async def group(
    lot: ParkingLot,
    selection: DeadLetterSelection | None = None,
    *,
    progress: Callable[[int], object] | None = None,
) -> list[DeadLetterGroup]:
    """Return the groups of the selected messages, the largest first, without removing a message from the queue.

    :param selection: conditions that a message must fulfil; None selects every message.
    :param progress: called with the number of messages read so far.
    """
    groups: dict[Cause, DeadLetterGroup] = {}
    async for message in find_each(lot, selection, progress=progress):
        cause = Cause.of(message)
        groups.setdefault(cause, DeadLetterGroup(cause))._add(message)
    return sorted(groups.values(), key=lambda found: (-found.count, found.cause))


__all__ = ["DeadLetterGroup", "group"]
