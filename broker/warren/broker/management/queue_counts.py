"""How many messages a queue has, where they are, and what they take: counted when somebody asks.

What waits is counted by the queue as it comes and goes; what is unacknowledged is in the hands of its channels, and is
looked through there, once for all queues.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from warren.broker.model.queue.backing_queue import MESSAGE_BYTES
from warren.broker.model.stream.stream import Stream

if TYPE_CHECKING:
    from warren.broker.connection.connection import Connection
    from warren.broker.model.message import Message
    from warren.broker.model.queue.queue import Queue

QUEUE_BYTES: Final = 4096
"""About what a queue takes in memory without its messages."""


@dataclass(frozen=True, slots=True)
class Figure:
    """Some messages: how many, and the bytes of their bodies."""

    count: int
    bytes: int

    def __add__(self, other: Figure) -> Figure:
        return Figure(self.count + other.count, self.bytes + other.bytes)


NONE: Final = Figure(0, 0)


class Unacknowledged:
    """What a queue has delivered and not got back."""

    def __init__(self) -> None:
        self.all = NONE
        self.in_memory = NONE
        self.persistent = NONE
        self.held = 0
        """Bytes of memory that they take, properties included."""

    def add(self, message: Message, durable: bool) -> None:
        one = Figure(1, int(message.body_size))
        self.all += one
        self.held += int(MESSAGE_BYTES) + len(message.content)
        if message.content or not one.bytes:
            self.in_memory += one
        if message.persistent and durable:
            self.persistent += one


def unacknowledged(connections: Iterable[Connection]) -> dict[Queue, Unacknowledged]:
    """What each queue has delivered and not got back, whether by a consumer or by basic.get."""
    figures: dict[Queue, Unacknowledged] = {}
    for connection in connections:
        for channel in connection.channels.values():
            held = list(channel.unacked.values())
            if channel.tx is not None:
                # Acknowledged, but not before the commit.
                held.extend(message for message, _ in channel.tx.settled)
            for message in held:
                if message.consumer is not None:
                    queue = message.consumer.queue
                    figures.setdefault(queue, Unacknowledged()).add(message, queue.durable)
    return figures


def ready(queue: Queue) -> Figure:
    """What is ready. Of a stream, what it holds; its bytes are those that it takes."""
    if isinstance(queue, Stream):
        return Figure(int(queue.message_count()), int(queue.stored_bytes()))
    return Figure(int(queue.ready.count), int(queue.ready.bytes))


def ready_in_memory(queue: Queue) -> Figure:
    """Of what is ready, that whose content is in memory."""
    return Figure(*queue.ready.resident_totals())


def ready_persistent(queue: Queue) -> Figure:
    """Of what is ready, that which is persistent in a durable queue."""
    if not queue.durable:
        return NONE
    return ready(queue) if isinstance(queue, Stream) else Figure(*queue.ready.persistent_totals())


def disk_reads(queue: Queue) -> int:
    """How many messages were read from the disk since the queue's start."""
    return queue.ready.disk_reads_total()


def disk_writes(queue: Queue) -> int:
    """How many messages were written to the disk since the queue's start: to keep them, or to make room in memory."""
    kept = int(queue.queue_log.written) if queue.queue_log is not None else 0
    return kept + (int(queue.pager.writes) if queue.pager is not None else 0)


def memory(queue: Queue, unacked: Unacknowledged) -> int:
    """About how many bytes of memory a queue takes, with all of its messages that are there."""
    return QUEUE_BYTES + int(queue.ready.memory_bytes()) + unacked.held
