"""`PublishReport`: the outcome of a bulk publish."""

from __future__ import annotations

from dataclasses import dataclass, field

from warren.sdk.errors import WarrenError
from warren.sdk.publish.outgoing import Outgoing


@dataclass(frozen=True, slots=True)
class Failure:
    """A message of a bulk publish that was not confirmed.

    :ivar index: position among the messages that were to be published, from 0.
    """

    index: int
    message: object
    error: WarrenError
    outgoing: Outgoing | None = field(default=None, repr=False, compare=False)
    """The encoded message, which another attempt publishes with the same id; None if it could not be encoded."""


@dataclass(frozen=True, slots=True)
class PublishReport:
    """Outcome of a bulk publish.

    :ivar total: number of messages.
    :ivar failures: the messages that were not confirmed.
    """

    total: int
    failures: tuple[Failure, ...]

    @property
    def confirmed(self) -> int:
        """Number of confirmed messages."""
        return self.total - len(self.failures)
