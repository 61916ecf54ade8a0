"""What became of many publishes: how many, and which were not confirmed."""

from __future__ import annotations

from dataclasses import dataclass

from warren.sdk.errors import WarrenError


@dataclass(frozen=True, slots=True)
class Failure:
    """One message of a batch that was not confirmed: its place in the batch, and why."""

    index: int
    message: object
    error: WarrenError


@dataclass(frozen=True, slots=True)
class PublishReport:
    """What became of a batch: `total` messages, and those that were not confirmed."""

    total: int
    failures: tuple[Failure, ...]

    @property
    def confirmed(self) -> int:
        return self.total - len(self.failures)
