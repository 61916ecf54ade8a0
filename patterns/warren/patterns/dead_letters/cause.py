"""Cause of a dead-lettering: what dead letters with the same defect have in common, and its id."""

from __future__ import annotations

from typing import NamedTuple

from warren.core.dead_letter_causes import group_id, normalise_error
from warren.patterns.dead_letters.parked_message import ParkedMessage


class Cause(NamedTuple):
    """Cause of a dead-lettering. Letters with equal causes are one group.

    :ivar queue: queue in which the message was dead-lettered, and so the handlers that it had.
    :ivar type: type of the message; empty if it has none.
    :ivar reason: reason of the dead-lettering, such as `failed` or `expired`.
    :ivar error: type and text of the exception, normalised by `normalise_error`.
    """

    queue: str
    type: str
    reason: str
    error: str

    @classmethod
    def of(cls, message: ParkedMessage) -> Cause:
        """Return the cause of a dead letter."""
        return cls(message.queue, message.delivery.type or "", message.reason, normalise_error(message.error))

    @property
    def id(self) -> str:
        """Eight hexadecimal digits that name the group. Equal causes have the same id in every process and release."""
        return group_id(self)


__all__ = ["Cause", "normalise_error"]
