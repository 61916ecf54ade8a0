"""Which dead letters are meant."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from fnmatch import fnmatchcase

from warren.patterns.dead_letters.parked_message import ParkedMessage


@dataclass(frozen=True, slots=True)
class DeadLetterSelection:
    """Those that all of these hold for; none given means all letters.

    :ivar queue: where it died; `*` stands for any text in this and the next three.
    :ivar exception: the type of the exception.
    :ivar key: the routing key that it was published with.
    :ivar older_than: it died at least so long ago.
    :ivar newer_than: it died at most so long ago.
    :ivar message_id: exactly this one.
    """

    queue: str | None = None
    reason: str | None = None
    exception: str | None = None
    key: str | None = None
    older_than: timedelta | None = None
    newer_than: timedelta | None = None
    message_id: str | None = None

    def __call__(self, letter: ParkedMessage, now: datetime) -> bool:
        if self.message_id is not None and letter.message_id != self.message_id:
            return False
        patterns = (
            (self.queue, letter.queue),
            (self.reason, letter.reason),
            (self.exception, letter.exception),
            (self.key, letter.key),
        )
        if not all(pattern is None or fnmatchcase(text, pattern) for pattern, text in patterns):
            return False
        if self.older_than is None and self.newer_than is None:
            return True
        if letter.last_death is None:
            return False
        age = now - letter.last_death
        return (self.older_than is None or age >= self.older_than) and (
            self.newer_than is None or age <= self.newer_than
        )


__all__ = ["DeadLetterSelection"]
