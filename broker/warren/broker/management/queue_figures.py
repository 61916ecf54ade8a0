"""How many messages a queue has, where they are, and what they take: counted when somebody asks.

What waits is counted by the queue as it comes and goes; what is unacknowledged is in the hands of its channels, and is
looked through there, once for all queues.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from warren.broker.model.message import Message

if TYPE_CHECKING:
    from warren.broker.model.queue import Queue
    from warren.broker.session.connection import Connection

QUEUE_BYTES: Final = 4096
"""What an empty queue takes, about."""
MESSAGE_BYTES: Final = 240
"""What a message takes in memory beside its content, about."""


class Figures:
    """Some messages: how many there are, the bytes of their bodies, and the part of both that is persistent."""

    def __init__(self) -> None:
        self.count = 0
        self.bytes = 0
        self.persistent = 0
        self.persistent_bytes = 0
        self.held = 0
        """Bytes that their contents take in memory, properties included."""

    def add(self, message: Message) -> None:
        self.count += 1
        self.bytes += int(message.body_size)
        self.held += len(message.content)
        if message.stored:
            self.persistent += 1
            self.persistent_bytes += int(message.body_size)


def unacknowledged(connections: Iterable[Connection]) -> dict[Queue, Figures]:
    """What each queue has delivered and not got back, whether by a consumer or by basic.get."""
    figures: dict[Queue, Figures] = {}
    for connection in connections:
        for channel in connection.channels.values():
            held = list(channel.unacked.values())
            if channel.tx is not None:
                # Acknowledged, but not before the commit.
                held.extend(message for message, _ in channel.tx.settled)
            for message in held:
                if message.consumer is not None:
                    figures.setdefault(message.consumer.queue, Figures()).add(message)
    return figures


def ready_in_memory(queue: Queue) -> tuple[int, int]:
    """Of what is ready: how many have their content in memory, and the bytes of their bodies."""
    return queue.waiting.in_memory()


def ready_persistent(queue: Queue) -> tuple[int, int]:
    """Of what is ready: how many are persistent in a durable queue, and the bytes of their bodies."""
    return queue.waiting.kept() if queue.log is not None else (0, 0)


def memory(queue: Queue, unacked: Figures) -> int:
    """Bytes that a queue takes: the contents in memory, and for each message and the queue itself a fixed sum."""
    return QUEUE_BYTES + int(queue.waiting.memory()) + unacked.held + MESSAGE_BYTES * unacked.count
