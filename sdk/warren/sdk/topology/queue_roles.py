"""Roles of the queues that the SDK and the patterns make for themselves, as their names and arguments show them.

Tools that look at a broker tell them from the queues of an application: nobody consumes them, and to delete one deletes
state.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from enum import Enum
from typing import Any, Final

from warren.sdk.topology.queue import UNLIMITED_DELIVERIES


class QueueRole(Enum):
    """Role of a queue of Warren's own."""

    DELAY = "delay"
    """Messages wait for the TTL of the queue, and move on then."""
    FORWARDING = "forwarding"
    """Messages move to their target at once; those whose target does not exist wait for it."""
    LOST = "lost"
    """Delayed messages whose way was deleted by somebody are kept here."""
    POSITION = "position"
    """The position of a reader of a stream is stored here, in one message."""
    DEAD_LETTERS = "dead letters"
    """Messages that were rejected or have expired are kept here."""

    @property
    def meaning(self) -> str:
        """Purpose of such a queue, as a clause: `it delays messages, which move on by themselves`."""
        return MEANINGS[self]


MEANINGS: Final = {
    QueueRole.DELAY: "it delays messages, which move on by themselves",
    QueueRole.FORWARDING: "it moves messages to their target, and keeps those whose target does not exist",
    QueueRole.LOST: "it keeps delayed messages whose way was deleted",
    QueueRole.POSITION: "it holds the position of a reader of a stream",
    QueueRole.DEAD_LETTERS: "it keeps messages that were rejected or have expired",
}

WAIT_QUEUE: Final = re.compile(r".+\.wait\.(?P<ms>\d+)", re.DOTALL)
"""Name of a queue that delays messages for one queue: `<target>.wait.<ms>`."""
LOST_IN_LEVELS: Final = re.compile(r".+\.\d+x\d+ms\.lost", re.DOTALL)
"""Name of the queue for messages that lost their way through such queues: `<name>.<levels>x<unit>ms.lost`."""
DELAY_LEVEL: Final = re.compile(r".+\.\d+x(?P<unit>\d+)ms\.(?P<level>\d\d)", re.DOTALL)
"""Name of a queue that delays messages by a power of two of a unit: `<name>.<levels>x<unit>ms.<level>`."""
FORWARDING_QUEUE: Final = re.compile(r".+\.(\d+x\d+ms|native)\.(t\..*|x\d+\..+|[0-9a-f]{64})", re.DOTALL)
"""Name of a queue that moves messages that are due to their target: `<name>.<levels>x<unit>ms.<target>`, or
`<name>.native.<target>`; the target is `t.<queue>`, `x<words>.<exchange>.<key>`, or the digest of a long one."""


def role_of(
    name: str, arguments: Mapping[str, Any], exchanges: Container[str] = frozenset()
) -> QueueRole | None:
    """Return the role of a queue of Warren's own; None for a queue of an application.

    :param arguments: arguments of the queue's declaration, by their AMQP names.
    :param exchanges: names of the exchanges of the virtual host, as far as they are known.
    """
    moves_on = arguments.get("x-dead-letter-exchange") is not None
    ttl = arguments.get("x-message-ttl")
    if moves_on and ttl is not None:
        if ttl == _delay_of(name):
            return QueueRole.DELAY
        keeps = arguments.get("x-dead-letter-strategy") == "at-least-once"
        return QueueRole.FORWARDING if ttl == 0 and keeps and FORWARDING_QUEUE.fullmatch(name) else None
    if moves_on:
        return None
    if name.endswith(".dead"):
        return QueueRole.DEAD_LETTERS
    if name.endswith(".position") and arguments.get("x-delivery-limit") == UNLIMITED_DELIVERIES:
        return QueueRole.POSITION
    is_lost = LOST_IN_LEVELS.fullmatch(name) or f"{name.removesuffix('lost')}native" in exchanges
    return QueueRole.LOST if is_lost and name.endswith(".lost") else None


def _delay_of(name: str) -> int | None:
    """Return the delay that a name stands for, in milliseconds; None if it is not that of a queue that delays."""
    if wait := WAIT_QUEUE.fullmatch(name):
        return int(wait["ms"])
    if level := DELAY_LEVEL.fullmatch(name):
        return int(level["unit"]) << int(level["level"])
    return None
