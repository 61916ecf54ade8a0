"""What the clients of a broker did and saw, event by event, in one order; it can be written to a file and read again."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from pathlib import Path


class What(StrEnum):
    """What happened. Whatever a client sends is noted before it is sent, and whatever comes, when it was read."""

    PUBLISH = "publish"
    """Sent: a persistent message, by way of whatever exchange, to durable `queues`."""
    CONFIRMED = "confirmed"
    REFUSED = "refused"
    DELIVERED = "delivered"
    READ = "read"
    """Delivered from a stream, where it was at `offset`."""
    ACK = "ack"
    REJECT = "reject"
    """Without requeue: it is to go to the dead letter exchange, or to end."""
    REQUEUE = "requeue"
    FENCE = "fence"
    """Sent: a method whose answer says that all that the client sent before has been worked off."""
    FENCED = "fenced"
    COMMIT = "commit"
    COMMITTED = "committed"
    ROLLBACK = "rollback"
    CLOSED = "closed"
    """The client closed its connection, and the broker has answered."""
    KILLED = "killed"
    """The broker ended without a word, or its power was cut, at `at`; all that its clients had received stands before."""
    STOPPED = "stopped"
    """The broker was stopped cleanly."""
    ALONE = "alone"
    """Nobody publishes any more, and from here on the client is the only consumer of all queues; or, where one is named, it
    reads that stream from the first message to the last."""
    EMPTIED = "emptied"
    """The client that is alone has taken and acknowledged all that is in the queues."""
    DECLARE = "declare"
    DECLARED = "declared"
    DELETE = "delete"
    DELETED = "deleted"
    EXISTS = "exists"
    """A durable queue (`message` names it) was looked for and found."""
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Event:
    """One event; what does not apply is empty.

    `at` is in seconds of a clock that only goes forward. `client` is a connection, and is never used again. `message` is
    `PUBLISHER:NUMBER`, with numbers that grow in the order of the publishes. `transaction` names what belongs to one
    commit.
    """

    what: What
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
class Rules:
    """What may become of a message in a queue."""

    dead_letters_to: str = ""
    """The queue that its dead letters go to."""
    ttl: bool = False
    """Messages end here by themselves."""
    ordered: bool = True
    """False for a queue of dead letters: they come in the order in which they died."""
    priorities: int = 0
    """The highest priority, which is served first; what asks for more gets this one."""
    stream: bool = False
    """Messages stay in it."""


class History:
    """Takes events down in the order in which they are told."""

    def __init__(self, rules: dict[str, Rules]) -> None:
        """:param rules: by queue"""
        self.rules = rules
        self.events: list[Event] = []

    def note(
        self,
        what: What,
        client: str = "",
        message: str = "",
        *queues: str,
        transaction: str = "",
        priority: int = 0,
        redelivered: bool = False,
        offset: int = 0,
        at: float = 0.0,
    ) -> None:
        """:param at: when, if not now"""
        moment = at or time.monotonic()
        self.events.append(
            Event(what, moment, client, message, queues, transaction, priority, redelivered, offset)
        )

    def write(self, path: Path) -> None:
        """As lines of JSON: the rules, then an event a line with what is not empty."""
        with path.open("w") as file:
            file.write(json.dumps({name: asdict(rules) for name, rules in self.rules.items()}) + "\n")
            for event in self.events:
                file.write(json.dumps(dict(_filled(event))) + "\n")


def read(path: Path) -> History:
    """What `History.write` wrote."""
    with path.open() as file:
        history = History({name: Rules(**rules) for name, rules in json.loads(file.readline()).items()})
        for line in file:
            values = json.loads(line)
            values["what"] = What(values["what"])
            values["queues"] = tuple(values.get("queues", ()))
            history.events.append(Event(**values))
    return history


def number(message: str) -> int:
    """The number within its publisher's."""
    return int(message.rpartition(":")[2])


def publisher(message: str) -> str:
    return message.rpartition(":")[0]


def _filled(event: Event) -> Iterator[tuple[str, object]]:
    for name in (field.name for field in fields(event)):
        value = getattr(event, name)
        if value or name == "at":
            yield name, value.value if isinstance(value, What) else value
