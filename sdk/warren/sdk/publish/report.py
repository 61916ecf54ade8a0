"""What became of many publishes: how many, and which were not confirmed."""

from __future__ import annotations

from dataclasses import dataclass, field

from warren.sdk.errors import WarrenError
from warren.sdk.publish.outgoing import Outgoing


@dataclass(frozen=True, slots=True)
class Failure:
    """One message of a batch that was not confirmed: its place in the batch, and why."""

    index: int
    message: object
    error: WarrenError
    outgoing: Outgoing | None = field(default=None, repr=False, compare=False)
    """As it was encoded, with the id that another attempt keeps; None if it could not be encoded."""


@dataclass(frozen=True, slots=True)
class PublishReport:
    """What became of a batch: `total` messages, and those that were not confirmed."""

    total: int
    failures: tuple[Failure, ...]

    @property
    def confirmed(self) -> int:
        return self.total - len(self.failures)
