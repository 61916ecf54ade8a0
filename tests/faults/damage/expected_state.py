"""State that a data folder must have: what the broker confirmed to the clients that filled it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field


def make_body(token: str, size: int) -> bytes:
    """Return a message body that names itself and whose every byte can be checked.

    :param token: name of the message, without spaces.
    :param size: bytes of the filler.
    """
    text = hashlib.shake_128(token.encode()).hexdigest((size + 1) // 2)[:size]
    return f"{token} {size} {text}".encode()


def token_of(body: bytes) -> str | None:
    """Return the name of the message that the body is of; None if a byte of it is wrong."""
    try:
        token, size, _ = body.decode("ascii").split(" ", 2)
        return token if make_body(token, int(size)) == body else None
    except ValueError:
        return None


@dataclass(frozen=True)
class QueueMessage:
    """A message of a queue, as confirmed or as found."""

    token: str
    redelivered: bool = False
    """Confirmed: it must be marked as redelivered."""
    deliveries: int = 0
    """Header x-delivery-count."""
    priority: int = 0
    death: str = ""
    """Queue, reason and count of the first entry of x-death."""


@dataclass
class ExpectedQueue:
    """Content of a queue."""

    messages: list[QueueMessage] = field(default_factory=list)
    """In the order of delivery."""
    settled: set[str] = field(default_factory=set)
    """Tokens of the messages whose acknowledgement, rejection or purge is safe."""
    counts_deliveries: bool = False
    """The queue counts deliveries (a quorum queue)."""


@dataclass
class ExpectedState:
    """All that must be in a folder, and in which run of the broker it was written."""

    queues: dict[str, ExpectedQueue] = field(default_factory=dict)
    """Queues by name; those of another virtual host as `VHOST:NAME`."""
    streams: dict[str, dict[int, str]] = field(default_factory=dict)
    """Streams by name: offset -> token."""
    next_offsets: dict[str, int] = field(default_factory=dict)
    """Lowest offset of each stream that was never given to a message."""
    positions: dict[tuple[str, str], int] = field(default_factory=dict)
    """Stored positions by stream and consumer tag: the first offset that is not acknowledged."""
    definitions: set[str] = field(default_factory=set)
    """Users, permissions, policies, exchanges, queues, bindings and so on, each as its section and JSON."""
    logins: dict[str, str] = field(default_factory=dict)
    """Passwords of the users that can log in."""
    runs: dict[str, int] = field(default_factory=dict)
    """Number of the run that wrote a log segment, by the segment's path."""
    published: dict[str, int] = field(default_factory=dict)
    """Number of the run that wrote a message's record, by queue and token (`QUEUE TOKEN`)."""
    settled: dict[str, int] = field(default_factory=dict)
    """Number of the run that wrote the settlement of a message, or its delivery count, by queue and token."""
