"""Rules of a routing slip: planned steps, completed steps for compensation, and how the slip ends."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple
from uuid import UUID, uuid5

from pydantic import Field

from warren.sdk import Command, ConfigError, DeadLetter

HEADER: Final = "warren-slip"
NAMESPACE: Final = UUID("7c0d7a51-7a4e-5d0c-8a44-3d3f0a0f5c27")
MAX_BYTES: Final = 64 * 1024
"""Largest routing slip, in bytes: the headers of a message must fit into one frame (AMQP 0-9-1 section 4.2.6.1)."""


class RoutingSlipEnded(Command):
    """Message that reports the end of a slip. Subclass it with a queue: `class BookingEnded(RoutingSlipEnded,
    queue="bookings.ended")`.

    :ivar slip: the id that `start` returned.
    :ivar completed: every step was executed; otherwise the executed ones are compensated.
    :ivar failed: type of the step that failed.
    :ivar reason: reason of the failure.
    :ivar results: results of the steps by their types, as JSON; empty for a failed slip.
    """

    slip: str
    completed: bool
    failed: str | None = None
    reason: str | None = None
    results: dict[str, Any] = Field(default_factory=dict)


class PlannedStep(NamedTuple):
    """Step to be executed."""

    type: str
    body: str


class CompletedStep(NamedTuple):
    """Executed step with its result, as JSON."""

    type: str
    body: str
    result: str


@dataclass(frozen=True, slots=True)
class RoutingSlip:
    """Itinerary of a message.

    :ivar end: type of the message that reports the end.
    :ivar todo: steps to be executed.
    :ivar done: executed steps.
    :ivar failed: type of the step that failed.
    """

    id: str
    end: str
    todo: tuple[PlannedStep, ...] = ()
    done: tuple[CompletedStep, ...] = ()
    failed: str | None = None
    reason: str | None = None

    def with_completed(self, step: PlannedStep, result: str) -> RoutingSlip:
        """Return the slip with one more executed step."""
        return replace(self, done=(*self.done, CompletedStep(*step, result)))

    def message_id(self, what: str) -> str:
        """Return the message id for `what` at this point of the slip, the same however often it is published."""
        return str(uuid5(NAMESPACE, f"{self.id}\n{what}\n{len(self.done)}"))

    def header(self) -> str:
        """Return the slip as the text of a header.

        :raises ConfigError: it is too large.
        """
        text = json.dumps(
            [self.id, self.end, self.todo, self.done, self.failed, self.reason], separators=(",", ":")
        )
        if len(text) > MAX_BYTES:
            raise ConfigError(
                f"the routing slip {self.id} has {len(text)} bytes, more than {MAX_BYTES}: keep steps and results small"
            )
        return text


def read(text: object) -> RoutingSlip:
    """Return the slip of a header.

    :raises DeadLetter: the header is no routing slip.
    """
    if not isinstance(text, str):
        raise DeadLetter("the message has no routing slip: start it with slips.start(...)")
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
        raise DeadLetter("the routing slip in its header cannot be read") from None


__all__ = ["HEADER", "CompletedStep", "PlannedStep", "RoutingSlip", "RoutingSlipEnded", "read"]
