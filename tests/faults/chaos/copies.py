"""What the checker knows at a point of a history: of each message in each queue, of each client, of each transaction."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from tests.faults.chaos.history import What


@dataclass(slots=True)
class Settle:
    """An acknowledgement, or a rejection, that a client has sent."""

    what: What
    position: int
    """Of the event in the history."""
    life: int
    transaction: str = ""
    worked_off: float = 0.0
    """From when on the broker is known to have read it; 0 if it is not."""
    safe: bool = False
    """It counts as synced."""


@dataclass(slots=True)
class Copy:
    """A message in one queue. `life` is the number of the broker's life in which something happened, -1 never."""

    message: str
    queue: str
    life: int
    """Published in it."""
    transaction: str = ""
    priority: int = 0
    due: bool = False
    """The broker has said that it has it: it has to come out, or to end as somebody wanted."""
    delivered: int = -1
    """The last life in which a client got it."""
    holder: str = ""
    """The client that has it unacknowledged."""
    settle: Settle | None = None
    """What a client did with it, unless it came back afterwards."""

    def __str__(self) -> str:
        return f"{self.message} in {self.queue}"


@dataclass(slots=True)
class Client:
    """What a client has sent whose effect is not known for certain."""

    settles: list[Settle] = field(default_factory=list)
    publishes: dict[str, tuple[int, float]] = field(default_factory=dict)
    """Position and time of the publishes, by message."""
    fence: int = -1
    commit: int = -1
    holding: dict[tuple[str, str], Copy] = field(default_factory=dict)


class State(Enum):
    OPEN = "open"
    SENT = "sent"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"


@dataclass(slots=True)
class Transaction:
    """What belongs to one commit."""

    life: int
    state: State = State.OPEN
    copies: list[Copy] = field(default_factory=list)
    settled: list[tuple[Copy, Settle]] = field(default_factory=list)
    undone: list[Copy] = field(default_factory=list)
    """Whose acknowledgement in it has proved void."""
