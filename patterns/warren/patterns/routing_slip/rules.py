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
    :ivar completed: True if every step was executed; False if a step failed and the executed ones were compensated.
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
    """Step of a routing slip that is yet to be executed."""

    type: str
    body: str


class CompletedStep(NamedTuple):
    """Step of a routing slip that was executed, with its result as JSON."""

    type: str
    body: str
    result: str


@dataclass(frozen=True, slots=True)
class RoutingSlip:
    """List of a message's executed and planned steps, carried in its header.

    :ivar end: type of the message that reports the end.
    :ivar todo: steps that are yet to be executed.
    :ivar done: steps that were executed and not compensated.
    :ivar failed: type of the step that failed.
    """

    id: str
    end: str
    todo: tuple[PlannedStep, ...] = ()
    done: tuple[CompletedStep, ...] = ()
    failed: str | None = None
    reason: str | None = None

    def with_completed(self, step: PlannedStep, result: str) -> RoutingSlip:
        """Return the slip with `step` and its result added to the executed steps."""
        return replace(self, done=(*self.done, CompletedStep(*step, result)))

    def message_id(self, what: str) -> str:
        """Return the id for the next message of the slip. It is computed from the slip's id, `what` and the number of
        steps in `done`, so it is the same each time the message is published.

        :param what: `do` for a step, `undo` for a compensation, `end` for the message that reports the end.
        """
        return str(uuid5(NAMESPACE, f"{self.id}\n{what}\n{len(self.done)}"))

    def header(self) -> str:
        """Encode the slip as the text of a header.

        :raises ConfigError: the text is larger than `MAX_BYTES`.
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
    """Decode the routing slip from a message's header.

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
