"""State that the checker keeps while it reads a history: for each message in a queue, client and transaction."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from tests.faults.chaos.history import EventType


@dataclass(slots=True)
class Settlement:
    """An acknowledgement or rejection that a client has sent."""

    type: EventType
    position: int
    """Position of the event in the history."""
    life: int
    """Number of the broker's life, which lasts from its start to its crash or stop."""
    transaction: str = ""
    processed_at: float = 0.0
    """Time from which on the broker has certainly processed it; 0 if that is not known."""
    durable: bool = False
    """The settlement is certainly on disk."""


@dataclass(slots=True)
class MessageCopy:
    """A message in one queue."""

    message: str
    queue: str
    life: int
    """Number of the broker's life in which it was published."""
    transaction: str = ""
    priority: int = 0
    due: bool = False
    """The broker has confirmed it: it must be delivered, or end by an acknowledgement, a rejection or its TTL."""
    delivered: int = -1
    """Number of the last life in which it was delivered; -1 if never."""
    holder: str = ""
    """Client that has it unacknowledged; empty if none has."""
    settle: Settlement | None = None
    """The acknowledgement or rejection that ended it, unless it was delivered again afterwards."""

    def __str__(self) -> str:
        return f"{self.message} in {self.queue}"


@dataclass(slots=True)
class Client:
    """A client's acknowledgements and publishes whose effect is not certain yet."""

    settles: list[Settlement] = field(default_factory=list)
    publishes: dict[str, tuple[int, float]] = field(default_factory=dict)
    """Position and time of unconfirmed publishes, by message."""
    fence: int = -1
    """Position of the last FENCE event; -1 if none."""
    commit: int = -1
    """Position of the last COMMIT event; -1 if none."""
    holding: dict[tuple[str, str], MessageCopy] = field(default_factory=dict)
    """Unacknowledged messages by message and queue."""


class TransactionState(Enum):
    """States of a transaction."""

    OPEN = "open"
    SENT = "sent"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"


@dataclass(slots=True)
class Transaction:
    """The publishes and acknowledgements of one transaction."""

    life: int
    state: TransactionState = TransactionState.OPEN
    copies: list[MessageCopy] = field(default_factory=list)
    settled: list[tuple[MessageCopy, Settlement]] = field(default_factory=list)
    undone: list[MessageCopy] = field(default_factory=list)
    """Messages that were acknowledged in it and were delivered again afterwards."""
