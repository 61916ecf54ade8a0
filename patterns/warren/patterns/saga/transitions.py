"""Transitions of a saga: the next state, messages to send, and the compensation of the step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from warren.sdk import Message

Data = TypeVar("Data")

COMPLETED: Final = "completed"
"""State of a saga that has reached its end."""
COMPENSATING: Final = "compensating"
"""State of a saga that compensates its steps, the last one first."""
COMPENSATED: Final = "compensated"
"""State of a saga whose steps are all compensated."""
ENDED: Final = frozenset({COMPLETED, COMPENSATED})


@dataclass(frozen=True, slots=True)
class Compensation:
    """Message that compensates a step.

    :param until: class of the answer that reports its completion; earlier steps are compensated only then. Without it
        the next compensation is sent at once, so only the order of *sending* is guaranteed.
    """

    message: Message
    until: type[Message] | None = None


@dataclass(frozen=True, slots=True)
class TransitionTo(Generic[Data]):
    """Transition that enters `state`; its timeout starts anew, also if the saga was in it already.

    :param data: data of the saga from now on; None keeps the present data. The start of a saga needs it.
    :param send: messages, published in this order after the state is saved, at least once, with stable ids.
    :param compensation: compensates this step if the saga is compensated later.
    """

    state: str
    data: Data | None = None
    send: Sequence[Message] = ()
    compensation: Message | Compensation | None = None


@dataclass(frozen=True, slots=True)
class StayInState(Generic[Data]):
    """Transition that keeps the state and its running timeout; parameters as for `TransitionTo`.

    While the saga compensates, `compensation` is run next.
    """

    data: Data | None = None
    send: Sequence[Message] = ()
    compensation: Message | Compensation | None = None


@dataclass(frozen=True, slots=True)
class CompleteSaga(Generic[Data]):
    """Transition to the end of the saga; its steps cannot be compensated any more."""

    data: Data | None = None
    send: Sequence[Message] = ()


@dataclass(frozen=True, slots=True)
class CompensateSaga(Generic[Data]):
    """Transition that compensates all steps, the last one first, after `send`.

    :param reason: reason for the history.
    """

    reason: str
    data: Data | None = None
    send: Sequence[Message] = ()


SagaTransition = TransitionTo[Data] | StayInState[Data] | CompleteSaga[Data] | CompensateSaga[Data]

__all__ = [
    "COMPENSATED",
    "COMPENSATING",
    "COMPLETED",
    "ENDED",
    "CompensateSaga",
    "Compensation",
    "CompleteSaga",
    "SagaTransition",
    "StayInState",
    "TransitionTo",
]
