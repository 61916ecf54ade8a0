"""The slip: what is still to be done, what was done and is remembered for its undoing, and where the end is told."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple
from uuid import UUID, uuid5

from pydantic import Field

from warren.sdk import Command, ConfigError, DeadLetter

HEADER: Final = "warren-slip"
NAMESPACE: Final = UUID("7c0d7a51-7a4e-5d0c-8a44-3d3f0a0f5c27")
MOST_BYTES: Final = 64 * 1024
"""Of a slip on its way: the headers of a message have to fit into one frame (AMQP 0-9-1 section 4.2.6.1)."""


class RoutingSlipEnded(Command):
    """How a slip ended. Subclass it with a queue: `class BookingEnded(RoutingSlipEnded, queue="bookings.ended")`.

    :ivar slip: the id that `start` returned.
    :ivar completed: every step was done; else those that were are undone.
    :ivar failed: the type of the step that failed.
    :ivar reason: why.
    :ivar results: what the steps returned, by their types, as JSON; of a slip that failed, of none.
    """

    slip: str
    completed: bool
    failed: str | None = None
    reason: str | None = None
    results: dict[str, Any] = Field(default_factory=dict)


class PlannedStep(NamedTuple):
    """A step to come."""

    type: str
    body: str


class CompletedStep(NamedTuple):
    """A step that was done, and what it returned, as JSON."""

    type: str
    body: str
    result: str


@dataclass(frozen=True, slots=True)
class RoutingSlip:
    """:ivar end: the type of the message that tells the end."""

    id: str
    end: str
    todo: tuple[PlannedStep, ...] = ()
    done: tuple[CompletedStep, ...] = ()
    failed: str | None = None
    reason: str | None = None

    def took(self, step: PlannedStep, result: str) -> RoutingSlip:
        return replace(self, done=(*self.done, CompletedStep(*step, result)))

    def message_id(self, what: str) -> str:
        """The same for one step of one slip, however often it is published."""
        return str(uuid5(NAMESPACE, f"{self.id}\n{what}\n{len(self.done)}"))

    def header(self) -> str:
        """:raises ConfigError: it is too large to travel."""
        text = json.dumps(
            [self.id, self.end, self.todo, self.done, self.failed, self.reason], separators=(",", ":")
        )
        if len(text) > MOST_BYTES:
            raise ConfigError(
                f"the routing slip {self.id} has {len(text)} bytes, {MOST_BYTES} can travel: keep steps and results small"
            )
        return text


def read(text: object) -> RoutingSlip:
    """:raises DeadLetter: it is no slip."""
    if not isinstance(text, str):
        raise DeadLetter("the message carries no routing slip: start it with slips.start(...)")
    try:
        identity, end, todo, done, failed, reason = json.loads(text)
        return RoutingSlip(
            identity,
            end,
            tuple(PlannedStep(*step) for step in todo),
            tuple(CompletedStep(*step) for step in done),
            failed,
            reason,
        )
    except (ValueError, TypeError):
        raise DeadLetter("its routing slip cannot be read") from None


__all__ = ["HEADER", "CompletedStep", "PlannedStep", "RoutingSlip", "RoutingSlipEnded", "read"]
