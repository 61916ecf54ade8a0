"""Message counts and sizes of queues: ready and unacknowledged messages, in memory and persistent.

A queue keeps counters of its ready messages. Unacknowledged messages belong to channels; they are counted on request, in one
pass for all queues.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from warren.broker.management.request import Json
from warren.broker.model.queue.backing_queue import MESSAGE_BYTES
from warren.broker.model.queue.priority_backing_queue import PriorityBackingQueue
from warren.broker.model.stream.stream import Stream

if TYPE_CHECKING:
    from warren.broker.connection.client_session import ClientSession
    from warren.broker.model.message import Message
    from warren.broker.model.queue.queue import Queue

STEP: Final = 100
"""Unacknowledged messages that are counted in one step."""
QUEUE_BYTES: Final = 4096
"""Approximate memory of a queue without messages, in bytes."""


@dataclass(frozen=True, slots=True)
class MessageCount:
    """Number of messages, and the sum of their body sizes in bytes."""

    count: int
    bytes: int

    def __add__(self, other: MessageCount) -> MessageCount:
        return MessageCount(self.count + other.count, self.bytes + other.bytes)


ZERO: Final = MessageCount(0, 0)


class UnackedCounts:
    """Counts of a queue's unacknowledged messages: all, those with their content in memory, and persistent ones."""

    def __init__(self) -> None:
        self.all = ZERO
        self.in_memory = ZERO
        self.persistent = ZERO
        self.memory_bytes = 0
        """Approximate memory of all these messages in bytes; for a content that is paged out, without the content."""

    def add(self, message: Message, durable: bool) -> None:
        one = MessageCount(1, int(message.body_size))
        self.all += one
        self.memory_bytes += int(MESSAGE_BYTES) + len(message.content)
        if message.content or not one.bytes:
            self.in_memory += one
        if message.persistent and durable:
            self.persistent += one


def count_unacked_in_steps(
    sessions: Iterable[ClientSession],
) -> Generator[None, None, dict[Queue, UnackedCounts]]:
    """Count the unacknowledged messages of each queue, delivered to consumers or fetched with basic.get.

    The generator yields from time to time, so that the caller can let the event loop run. Messages that are settled
    meanwhile may be counted or not.

    :param sessions: all sessions of the broker
    :return: counts by queue, as the value of the generator; a queue without unacknowledged messages is missing
    """
    figures: dict[Queue, UnackedCounts] = {}
    for session in sessions:
        for held in session.held_messages():
            for index, message in enumerate(held):
                if message.consumer is not None:
                    queue = message.consumer.queue
                    figures.setdefault(queue, UnackedCounts()).add(message, queue.durable)
                if index % STEP == STEP - 1:
                    yield
            yield
    return figures


def count_ready(queue: Queue) -> MessageCount:
    """Count the ready messages. For a stream, count all messages that it stores, with their size on disk."""
    if isinstance(queue, Stream):
        return MessageCount(int(queue.message_count()), int(queue.stored_bytes()))
    return MessageCount(int(queue.ready.count), int(queue.ready.bytes))


class Lengths(NamedTuple):
    """Numbers of the messages of a queue. Dead letters and retries that wait are neither ready nor unacknowledged."""

    messages: int
    ready: int
    unacknowledged: int


def count_lengths(queue: Queue) -> Lengths:
    """Count the messages of a queue."""
    ready, unacked = count_ready(queue).count, int(queue.unacked)
    return Lengths(ready + queue.held_back_count() + unacked, ready, unacked)


def count_held_back(queue: Queue) -> MessageCount:
    """Count the messages that are neither ready nor unacknowledged: dead letters and retries that wait."""
    return MessageCount(queue.held_back_count(), queue.held_back_bytes())


def count_held_back_persistent(queue: Queue) -> MessageCount:
    """Count the held back messages of a quorum queue, which are all persistent. Those of a classic queue do not count."""
    return count_held_back(queue) if queue.stores_all_messages else ZERO


def count_ready_in_memory(queue: Queue) -> MessageCount:
    """Count the ready messages whose content is in memory; the content of the others is only on disk."""
    return MessageCount(*queue.ready.resident_totals())


def count_ready_persistent(queue: Queue) -> MessageCount:
    """Count the ready messages that are persistent and in a durable queue."""
    if not queue.durable:
        return ZERO
    return count_ready(queue) if isinstance(queue, Stream) else MessageCount(*queue.ready.persistent_totals())


def disk_reads(queue: Queue) -> int:
    """Return the number of messages read from disk since the queue was declared or recovered."""
    return queue.ready.disk_reads_total()


def disk_writes(queue: Queue) -> int:
    """Return the number of messages written to disk, because they are persistent or were paged out.

    The count starts when the queue is declared or recovered.
    """
    if queue.queue_log is not None:
        return int(queue.queue_log.written)
    return int(queue.pager.queue_log.written) if queue.pager is not None else 0


def backing_queue_status(queue: Queue) -> dict[str, Json]:
    """Return the lengths of the parts of a classic queue's backing queue, under RabbitMQ's names; empty for others.

    They are those of RabbitMQ before 3.12: q1, q2, the delta (first sequence number, count, transient ones, the number
    behind the last), q3 and q4. `returned` counts requeued messages. For a priority queue they are sums over all
    priorities, without the numbers of the delta, and `priority_lengths` has the length of each.
    """
    if queue.declared_arguments.type_name != "classic":
        return {}
    ready = queue.ready
    levels = ready.levels if isinstance(ready, PriorityBackingQueue) else [ready]
    in_delta = sum(int(level.delta.count) for level in levels)
    first: Json = "undefined"
    following: Json = "undefined"
    if in_delta and len(levels) == 1:
        first, following = int(ready.delta.first), int(ready.delta.last) + 1
    status: dict[str, Json] = {
        "mode": "lazy" if ready.lazy else "default",
        "q1": sum(len(level.q1) for level in levels),
        "q2": sum(len(level.q2) for level in levels),
        "delta": ["delta", first, in_delta, 0, following],
        "q3": sum(len(level.q3) for level in levels),
        "q4": sum(len(level.q4) for level in levels),
        "returned": sum(len(level.returned) for level in levels),
        "len": int(ready.count),
        "next_seq_id": int(queue.next_sequence),
    }
    if len(levels) > 1:
        status["priority_lengths"] = {str(at): int(level.count) for at, level in enumerate(levels)}
    return status


def memory_bytes(queue: Queue, unacked: UnackedCounts) -> int:
    """Return the approximate memory of a queue in bytes, including its ready and unacknowledged messages in memory."""
    return QUEUE_BYTES + int(queue.ready.memory_bytes()) + unacked.memory_bytes
