"""Browsing of a queue's messages without consuming them: ready, unacknowledged, and delayed ones, in pages.

Nothing here changes the queue. A message whose content is on disk only is shown by a copy, so that no content enters
memory for longer than the page needs it. All functions that may take long are generators, which yield after small steps;
messages that arrive or leave meanwhile may be in the page or not.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator, Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeVar

from warren.broker.model.message import Message
from warren.broker.model.queue.backing_queue import BackingQueue, first_from
from warren.broker.model.queue.delayed_messages import DelayedMessages
from warren.broker.model.queue.priority_backing_queue import PriorityBackingQueue

if TYPE_CHECKING:
    from warren.broker.channel.channel import Channel
    from warren.broker.model.queue.queue import Queue

Position = tuple[int, int]
"""Position of a message among those in one state: (rank, sequence number). Messages are shown in this order.

The rank is the highest priority of the queue less that of the message; of a delayed message, the end of its delay in
milliseconds.
"""
BEFORE_ALL: Final[Position] = (-1, -1)
STEP: Final = 64
"""Messages that are looked at in one step."""
SCANNED_AT_ONCE: Final = 512
"""Entries of an unordered container that are compared in one step."""
ATTEMPTS: Final = 3
"""Scans of a heap that changes meanwhile, before the last one counts."""

Item = TypeVar("Item")


def ready_after(queue: Queue, after: Position, limit: int) -> Generator[None, None, list[Message]]:
    """Return the next ready messages behind a position, in the order of delivery, each with its content.

    :param limit: most messages; STEP at most.
    """
    ready = queue.ready
    top = highest_priority(ready)
    found: list[Message] = []
    for rank in range(max(0, after[0]), top + 1):
        sequence = after[1] if rank == after[0] else -1
        level = ready.level(top - rank)
        if level.count:
            found += yield from _level_after(level, sequence, limit - len(found))
        if len(found) >= limit:
            break
    return with_contents(queue, found)


def place_of(queue: Queue, message: Message) -> Generator[None, None, int]:
    """Return the index that a ready message may have among those that were requeued; -1 if it is not there."""
    level = queue.ready.level(message.priority)
    heap, wanted = level.returned, int(message.sequence)
    if not heap or not level.precedes_unreturned(wanted):
        return -1
    waiting, looked = [0], 0
    while waiting:
        at = waiting.pop()
        looked += 1
        if at < len(heap) and heap[at][0] <= wanted:
            if heap[at][0] == wanted:
                return at
            waiting += (2 * at + 1, 2 * at + 2)
        if not looked % SCANNED_AT_ONCE:
            yield
    return -1


def highest_priority(ready: BackingQueue) -> int:
    """Return the highest priority that a queue distinguishes; 0 for a queue without priorities."""
    return int(ready.top) if isinstance(ready, PriorityBackingQueue) else 0


def position_of(queue: Queue, message: Message) -> Position:
    """Return the position of a ready message."""
    top = highest_priority(queue.ready)
    return top - min(int(message.priority), top), int(message.sequence)


def _level_after(level: BackingQueue, sequence: int, limit: int) -> Generator[None, None, list[Message]]:
    """Return the messages of one priority with sequence numbers higher than one given."""
    found: list[Message] = []
    if level.returned:
        pairs = yield from smallest_after(
            level.returned,
            lambda pair: (0, pair[0]),
            (0, sequence),
            limit,
            lambda: _heap_mark(level.returned),
        )
        found = [pair[1] for pair in pairs]
    for part in (level.q4, level.q3):
        found += _part_after(part, sequence, limit - len(found))
    if len(found) < limit and level.delta.count and level.pager is not None:
        found += level.delta.peek(level.pager, sequence + 1, STEP)[: limit - len(found)]
    for part in (level.q2, level.q1):
        if not level.delta.count or len(found) < limit:
            found += _part_after(part, sequence, limit - len(found))
    yield
    found.sort(key=lambda message: message.sequence)
    return found[:limit]


def _part_after(part: Sequence[Message], sequence: int, limit: int) -> list[Message]:
    if limit <= 0 or not part:
        return []
    start = int(first_from(part, sequence + 1))  # type: ignore[arg-type]
    return [part[at] for at in range(start, min(len(part), start + limit))]


def _heap_mark(heap: list[tuple[int, Message]]) -> tuple[int, int]:
    return (len(heap), heap[0][0] if heap else 0)


def smallest_after(
    items: Sequence[Item],
    key: Callable[[Item], Position],
    after: Position,
    limit: int,
    mark: Callable[[], object],
) -> Generator[None, None, list[Item]]:
    """Return the items with the lowest keys behind a position, in order.

    :param mark: returns another value when the container has changed; then the scan begins again, a few times.
    """
    for attempt in range(ATTEMPTS):
        before = mark()
        found: list[Item] = []
        start = 0
        while start < len(items):
            part = (
                islice(items, start, start + SCANNED_AT_ONCE)
                if not isinstance(items, list)
                else (items[start : start + SCANNED_AT_ONCE])
            )
            found = heapq.nsmallest(limit, [*found, *(each for each in part if key(each) > after)], key=key)
            start += SCANNED_AT_ONCE
            yield
        if mark() == before or attempt == ATTEMPTS - 1:
            break
    return found


def delayed_after(queue: Queue, after: Position, limit: int) -> Generator[None, None, list[Message]]:
    """Return the next messages that wait in the internal queue of a delayed exchange, the earliest due first."""
    ready = queue.ready
    assert isinstance(ready, DelayedMessages)
    entries = yield from smallest_after(
        ready.by_time,
        lambda entry: (entry[0], entry[1]),
        after,
        limit,
        lambda: (len(ready.by_time), ready.by_time[0][:2] if ready.by_time else None),
    )
    return with_contents(queue, [entry[2] for entry in entries])


def retries_after(
    queue: Queue, after: Position, limit: int
) -> Generator[None, None, list[tuple[int, int, Message]]]:
    """Return the next requeued messages that wait for their retry delay: rank, its end in ms since 1970, message."""
    retries = queue.delayed_retries
    if retries is None:
        return []
    heap = retries.waiting
    ahead = queue.vhost.clock.wall() - queue.vhost.clock.now()
    entries = yield from smallest_after(
        heap,
        lambda entry: (round(entry[0] * 1000), entry[1]),
        after,
        limit,
        lambda: (len(heap), heap[0][:2] if heap else None),
    )
    messages = {int(each.sequence): each for each in with_contents(queue, [entry[2] for entry in entries])}
    return [
        (round(entry[0] * 1000), round((entry[0] + ahead) * 1000), messages[entry[1]])
        for entry in entries
        if entry[1] in messages
    ]


def dead_letters_after(
    queue: Queue, after: Position, limit: int
) -> Generator[None, None, list[tuple[str, Message]]]:
    """Return the next dead letters of a queue that no target has accepted yet, each with its reason."""
    pending = queue.pending_dead_letters
    entries = yield from smallest_after(
        pending,
        lambda entry: (0, int(entry[0].sequence)),
        after,
        limit,
        lambda: (len(pending), int(pending[0][0].sequence) if pending else None),
    )
    messages = {int(each.sequence): each for each in with_contents(queue, [entry[0] for entry in entries])}
    return [
        (reason, messages[int(message.sequence)])
        for message, reason in entries
        if int(message.sequence) in messages
    ]


def unacknowledged_after(
    queue: Queue, channels: Iterable[Channel], after: Position, limit: int
) -> Generator[None, None, list[tuple[Channel, bytes, Message]]]:
    """Return the next unacknowledged messages of a queue: the channel and the consumer tag that hold each, and the message.

    :param channels: all channels of the broker.
    """
    found: list[tuple[Channel, bytes, Message]] = []
    for channel in channels:
        if channel.unacked:
            held = list(channel.unacked.values())
            for start in range(0, len(held), SCANNED_AT_ONCE):
                own = [
                    (channel, message.consumer.tag, message)
                    for message in held[start : start + SCANNED_AT_ONCE]
                    if message.consumer is not None
                    and message.consumer.queue is queue
                    and (0, int(message.sequence)) > after
                ]
                found = heapq.nsmallest(limit, [*found, *own], key=lambda each: int(each[2].sequence))
                yield
    messages = {int(each.sequence): each for each in with_contents(queue, [each[2] for each in found])}
    return [
        (channel, tag, messages[int(message.sequence)])
        for channel, tag, message in found
        if int(message.sequence) in messages
    ]


def with_contents(queue: Queue, messages: list[Message]) -> list[Message]:
    """Return messages with their contents. Those that are on disk only are replaced by copies.

    Messages that cannot be read, for example because they have left the queue, are omitted.
    """
    pager = queue.pager
    copies = {int(message.sequence): _copy(message) for message in messages if not message.content}
    if copies and pager is not None:
        pager.load_contents(sorted(copies.values(), key=lambda message: message.log_position))
    found = [copies.get(int(message.sequence), message) for message in messages]
    return [message for message in found if message.content]


def _copy(message: Message) -> Message:
    copy = Message(b"", b"", b"", message.body_size, 0)
    for name in (
        "sequence",
        "expires",
        "log_position",
        "acquired_count",
        "delivery_count",
        "priority",
        "persistent",
        "redelivered",
        "stored",
    ):
        setattr(copy, name, getattr(message, name))
    return copy
