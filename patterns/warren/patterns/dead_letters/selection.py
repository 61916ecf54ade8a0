"""Selection of dead letters by queue, reason, exception, routing key, age, id or cause."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from warren.patterns.dead_letters.cause import Cause
from warren.patterns.dead_letters.parked_message import ParkedMessage
from warren.patterns.wildcards import matches
from warren.sdk.extend import Duration, duration, optional_duration


@dataclass(frozen=True, slots=True)
class DeadLetterSelection:
    """Filter for dead letters: all conditions that are given must hold. Without conditions it selects every message.

    :ivar queue: queue in which the message was dead-lettered. `*` stands for any text here, in `reason`, in
        `exception` and in `key`; all other characters stand for themselves.
    :ivar reason: reason of the dead-lettering, such as `failed`, `rejected` or `expired`.
    :ivar exception: name of the exception's type with which the handler failed.
    :ivar key: routing key with which it was published.
    :ivar older_than: smallest time since the dead-lettering: a `timedelta`, seconds, or a text such as `2h`.
    :ivar newer_than: largest time since the dead-lettering.
    :ivar message_id: id of the only message to select.
    :ivar group: id of the group of letters with the same cause (`DeadLetterGroup.id`).
    :raises ConfigError: a time is not a duration.
    """

    queue: str | None = None
    reason: str | None = None
    exception: str | None = None
    key: str | None = None
    older_than: Duration | None = None
    newer_than: Duration | None = None
    message_id: str | None = None
    group: str | None = None

    def __post_init__(self) -> None:
        optional_duration(self.older_than, "older_than")
        optional_duration(self.newer_than, "newer_than")

    def __call__(self, message: ParkedMessage, now: datetime) -> bool:
        """Return whether the message matches all conditions; its age is computed for the time `now`."""
        if self.message_id is not None and message.message_id != self.message_id:
            return False
        patterns = (
            (self.queue, message.queue),
            (self.reason, message.reason),
            (self.exception, message.exception),
            (self.key, message.key),
        )
        if not all(pattern is None or matches(text, pattern) for pattern, text in patterns):
            return False
        if self.group is not None and Cause.of(message).id != self.group:
            return False
        if self.older_than is None and self.newer_than is None:
            return True
        if message.last_death is None:
            return False
        age = now - message.last_death
        return (self.older_than is None or age >= duration(self.older_than)) and (
            self.newer_than is None or age <= duration(self.newer_than)
        )


__all__ = ["DeadLetterSelection"]
