"""What a transition of a saga returns: where to go, what is sent, and what would undo it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from warren.sdk import Message

Data = TypeVar("Data")

COMPLETED: Final = "completed"
"""The state of a saga that reached its end."""
COMPENSATING: Final = "compensating"
"""The state of a saga that undoes its steps, the last one first."""
COMPENSATED: Final = "compensated"
"""The state of a saga whose steps are all undone."""
ENDED: Final = frozenset({COMPLETED, COMPENSATED})


@dataclass(frozen=True, slots=True)
class Compensation:
    """The message that undoes a step.

    :param until: the class of the message that says it is undone; what was done before is undone only then. Without it
        the next one is sent at once, so that the order in which they are *sent* is all that is promised.
    """

    message: Message
    until: type[Message] | None = None


@dataclass(frozen=True, slots=True)
class TransitionTo(Generic[Data]):
    """Enter `state` (its timeout begins anew, also if the saga was in it already).

    :param data: what the saga knows from now on; None keeps what it knew. A start needs it.
    :param send: published in this order, after the state is saved, at least once, with ids that stay the same.
    :param undo: what undoes this step, if the saga is compensated later.
    """

    state: str
    data: Data | None = None
    send: Sequence[Message] = ()
    undo: Message | Compensation | None = None


@dataclass(frozen=True, slots=True)
class StayInState(Generic[Data]):
    """Remain in the state (its timeout goes on); parameters as for `TransitionTo`. While the saga compensates, `undo` is next."""

    data: Data | None = None
    send: Sequence[Message] = ()
    undo: Message | Compensation | None = None


@dataclass(frozen=True, slots=True)
class CompleteSaga(Generic[Data]):
    """The saga has reached its end; nothing of it will be undone."""

    data: Data | None = None
    send: Sequence[Message] = ()


@dataclass(frozen=True, slots=True)
class CompensateSaga(Generic[Data]):
    """Undo all steps, the last one first; `send` goes out before.

    :param reason: for the history.
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
