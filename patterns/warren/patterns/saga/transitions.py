"""Transitions of a saga: the next state, messages to send, and the compensation of the step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from warren.sdk import Message

Data = TypeVar("Data")

COMPLETED: Final = "completed"
"""State of a saga that was completed with `CompleteSaga`."""
COMPENSATING: Final = "compensating"
"""State of a saga that is compensating its steps, the last one first."""
COMPENSATED: Final = "compensated"
"""State of a saga whose steps are all compensated."""
ENDED: Final = frozenset({COMPLETED, COMPENSATED})


@dataclass(frozen=True, slots=True)
class Compensation:
    """Message to send in order to compensate a step, with an optional answer to wait for.

    :param until: class of the answer that reports its completion; earlier steps are compensated only after that answer.
        Without it the next compensation is sent at once, so only the order of *sending* is guaranteed.
    """

    message: Message
    until: type[Message] | None = None


@dataclass(frozen=True, slots=True)
class TransitionTo(Generic[Data]):
    """Transition that enters `state`. The timeout of the state starts anew, also if the saga was in this state already.

    :param data: data of the saga from now on; None keeps the present data. Required when a saga is started.
    :param send: messages to publish in this order after the state is saved, at least once; a message that is published
        again has the same message id.
    :param compensation: message that compensates this step if the saga is compensated later.
    """

    state: str
    data: Data | None = None
    send: Sequence[Message] = ()
    compensation: Message | Compensation | None = None


@dataclass(frozen=True, slots=True)
class StayInState(Generic[Data]):
    """Transition that stays in the present state and does not restart its timeout.

    :param data: data of the saga from now on; None keeps the present data.
    :param send: messages to publish in this order after the saga is saved, at least once; a message that is published
        again has the same message id.
    :param compensation: message that compensates this step if the saga is compensated later. If the saga is already
        being compensated, this message is sent next.
    """

    data: Data | None = None
    send: Sequence[Message] = ()
    compensation: Message | Compensation | None = None


@dataclass(frozen=True, slots=True)
class CompleteSaga(Generic[Data]):
    """Transition that ends the saga successfully, in the state `COMPLETED`; its steps cannot be compensated any more.

    :param data: data of the saga from now on; None keeps the present data.
    :param send: messages to publish in this order after the saga is saved, at least once.
    """

    data: Data | None = None
    send: Sequence[Message] = ()


@dataclass(frozen=True, slots=True)
class CompensateSaga(Generic[Data]):
    """Transition that sends the compensations of all steps of the saga, the last step's first.

    :param reason: text for the saga's history.
    :param data: data of the saga from now on; None keeps the present data.
    :param send: messages to publish in this order before the compensations, at least once.
    """

    reason: str
    data: Data | None = None
    send: Sequence[Message] = ()


SagaTransition = TransitionTo[Data] | StayInState[Data] | CompleteSaga[Data] | CompensateSaga[Data]
"""Result of a function of a saga: the state that comes next."""

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
