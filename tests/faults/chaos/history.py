"""History of a load: all that clients sent to and received from a broker, as one ordered list of events, and its file."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from pathlib import Path


class EventType(StrEnum):
    """Types of events. An event that a client sends is recorded before it is sent; one that it receives, when it is read."""

    PUBLISH = "publish"
    """A client sends a persistent message that is routed to the durable `queues`."""
    CONFIRMED = "confirmed"
    REFUSED = "refused"
    DELIVERED = "delivered"
    READ = "read"
    """A stream delivers the message at `offset`."""
    ACK = "ack"
    REJECT = "reject"
    """A client rejects without requeue: the message is dead-lettered or dropped."""
    REQUEUE = "requeue"
    FENCE = "fence"
    """A client sends a method whose reply proves that the broker has processed all that the client sent before."""
    FENCED = "fenced"
    COMMIT = "commit"
    COMMITTED = "committed"
    ROLLBACK = "rollback"
    CLOSED = "closed"
    """The client closed its connection, and the broker has replied."""
    KILLED = "killed"
    """The broker was killed, or its power was cut, at time `at`. The events before are all that its clients received."""
    STOPPED = "stopped"
    """The broker was stopped cleanly."""
    DISTURBED = "disturbed"
    """A node of a cluster fails or failed. Acknowledgements before may be lost with it; publishes and clients go on."""
    DRAIN_STARTED = "drain_started"
    """Publishing has ended. The client is the only consumer of all queues from here on; with a stream in `queues`, it reads
    that stream from the first message to the last."""
    DRAINED = "drained"
    """The draining client has consumed and acknowledged all messages of the queues."""
    DECLARE = "declare"
    DECLARED = "declared"
    DELETE = "delete"
    DELETED = "deleted"
    EXISTS = "exists"
    """A durable queue, named in `message`, was checked and exists."""
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Event:
    """One event; fields that do not apply are empty.

    `at` is in seconds of the monotonic clock. `client` names a connection; no other connection gets the name. `message` is
    `PUBLISHER:NUMBER`, with numbers that grow in the order of the publishes. `transaction` names the transaction that the
    event belongs to.
    """

    type: EventType
    at: float
    client: str = ""
    message: str = ""
    queues: tuple[str, ...] = ()
    transaction: str = ""
    priority: int = 0
    redelivered: bool = False
    offset: int = 0

    @property
    def queue(self) -> str:
        (queue,) = self.queues
        return queue


@dataclass(frozen=True, slots=True)
class QueueRules:
    """Ways in which messages may leave a queue, and the order in which it delivers them."""

    dead_letters_to: str = ""
    """Queue that dead letters are routed to; empty for none."""
    ttl: bool = False
    """Messages expire."""
    ordered: bool = True
    """Messages of one publisher are delivered in order. False for dead letters, which come in the order of their deaths."""
    priorities: int = 0
    """Highest priority, delivered first. Higher ones in messages count as this one."""
    stream: bool = False
    """The queue is a stream."""


class History:
    """The events of a load in order."""

    def __init__(self, rules: dict[str, QueueRules]) -> None:
        """:param rules: the rules of each queue."""
        self.rules = rules
        self.events: list[Event] = []

    def note(
        self,
        event_type: EventType,
        client: str = "",
        message: str = "",
        *queues: str,
        transaction: str = "",
        priority: int = 0,
        redelivered: bool = False,
        offset: int = 0,
        at: float = 0.0,
    ) -> None:
        """Append an event.

        :param at: its time, if not now.
        """
        moment = at or time.monotonic()
        self.events.append(
            Event(event_type, moment, client, message, queues, transaction, priority, redelivered, offset)
        )

    def write(self, path: Path) -> None:
        """Write the history as lines of JSON: the rules, then an event a line, without empty fields."""
        with path.open("w") as file:
            file.write(json.dumps({name: asdict(rules) for name, rules in self.rules.items()}) + "\n")
            for event in self.events:
                file.write(json.dumps(dict(_filled(event))) + "\n")


def read(path: Path) -> History:
    """Return a history from the file that `History.write` wrote."""
    with path.open() as file:
        history = History({name: QueueRules(**rules) for name, rules in json.loads(file.readline()).items()})
        for line in file:
            values = json.loads(line)
            values["type"] = EventType(values["type"])
            values["queues"] = tuple(values.get("queues", ()))
            history.events.append(Event(**values))
    return history


def number(message: str) -> int:
    """Return the number of a message among those of its publisher."""
    return int(message.rpartition(":")[2])


def publisher(message: str) -> str:
    """Return the publisher of a message."""
    return message.rpartition(":")[0]


def _filled(event: Event) -> Iterator[tuple[str, object]]:
    for name in (field.name for field in fields(event)):
        value = getattr(event, name)
        if value or name == "at":
            yield name, value.value if isinstance(value, EventType) else value
