"""Bulk publish: messages for many queues, or many messages, that are enqueued in slices of bulk work.

It has three phases. First the messages are staged: each gets its place in its queues, which deliver nothing meanwhile. Then
they are written to the log as a whole. Only then are they delivered or enqueued, so that no consumer acknowledges a
message of which a crash would leave a part. A queue has at most one unfinished bulk publish at a time, because those of a
virtual host share a lane: between two of them it delivers.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from warren.broker.model.deduplication import drop_late_duplicates
from warren.broker.model.queue.queue import ACCEPTED, REJECTED, STORED, Queue

if TYPE_CHECKING:
    from warren.broker.model.message import Message
    from warren.broker.model.vhost.vhost import VirtualHost

BULK_COPIES: Final = 256
"""Copies of messages, one for each queue, above which they are enqueued as bulk work; so many take about 2 ms."""
CHUNK: Final = 32
"""Queues in which a message is staged, or whose staged messages are enqueued, before the time is checked."""


class BulkPublish:
    """Messages that are put into their queues in slices: staged, written to the log as a whole, and then enqueued."""

    is_stored = False
    """True if a part of it is written to the log, which confirms have to wait for."""
    is_done = False
    """True when all messages are enqueued, or the publish has failed."""

    def __init__(self, vhost: VirtualHost) -> None:
        self.vhost = vhost
        self.staged: list[Queue] = []
        """Queues that have staged messages, in the order in which these are enqueued."""
        self.refused: list[tuple[Queue, Message]] = []
        """Messages that full queues have rejected."""
        self.refused_before: i64 = 0
        """Number of `refused` before the current message."""
        self.for_streams: list[tuple[Queue, Message]] = []
        """Messages of streams, which are appended at the end: they are not in the record of the log."""
        self.copies: list[tuple[Queue, Message]] = []
        """All staged messages with their queues; empty once they are in the log."""
        self.position: i64 = 0
        """Index of the next queue, first of those in which the current message is staged, later of `staged`."""
        self.targets: list[Queue] = []
        """Queues in which the current message is staged."""
        self.window_queues: list[Queue] = []
        """Internal queues that store the deduplication key of the current message."""
        self.by_expiry: dict[int, list[tuple[Queue, Message]]] = {}
        """Copies of the current message that are written to the log, by their time of expiry."""
        self.expiries: dict[int, int] = {}
        """Times of expiry of the current message, by the TTL of the queue.

        They count from its first copy with that TTL: with a time for each copy, the log would hold its content as often.
        """

    @property
    def outcome(self) -> i64:
        """Common outcome of all messages: REJECTED if a queue refused one, else STORED or ACCEPTED."""
        return REJECTED if self.refused else STORED if self.is_stored else ACCEPTED

    def stage(self, queues: list[Queue], message: Message, end: float) -> bool:
        """Stage a message in its queues until a time; return True when it is staged in all and passed to the log.

        Until then, call this again with the same arguments.

        :param queues: queues that the message was routed to.
        :param end: the time by `time.monotonic()`.
        """
        if not self.position:
            self.targets = queues
            self.refused_before = len(self.refused)
            self.find_windows(message)
        targets = self.targets
        while self.position < len(targets):
            for queue in targets[self.position : self.position + CHUNK]:
                self.stage_copy(queue, message)
            self.position += CHUNK
            # The key of a message is remembered at the end: a duplicate must not come in between.
            if self.position < len(targets) and not self.window_queues and time.monotonic() >= end:
                return False
        self.position = 0
        self.log_copies()
        self.by_expiry.clear()
        self.expiries.clear()
        self.stage_keys(message)
        return True

    def log_copies(self) -> None:
        """Write the copies of the current message to the log, because it is staged in all its queues."""
        if self.by_expiry:
            self.vhost.store_by_expiry(self.by_expiry)
            self.is_stored = True

    def find_windows(self, message: Message) -> None:
        """Remove queues that drop the message as a duplicate from `targets`, and find those that store its key."""
        self.window_queues = []
        if self.vhost.window_count:
            self.window_queues = [queue for queue in self.targets if queue.stored_window is not None]
            if self.window_queues:
                left = drop_late_duplicates(self.targets, message)
                self.targets = [queue for queue in left if queue.stored_window is None]

    def stage_copy(self, queue: Queue, message: Message) -> None:
        """Stage a copy of a message in one queue, unless the queue is full and rejects it."""
        if queue.deleted:
            return
        if queue.has_length_limit and queue.rejects_publishes and queue.limit.would_exceed(message):
            self.refused.append((queue, message))
            return
        copy = message.copy()
        if queue.is_stream:
            self.for_streams.append((queue, copy))
            return
        if queue.stage(copy):
            self.staged.append(queue)
        if copy.expires and queue.delayed_exchange is None:
            copy.expires = self.expiries.setdefault(int(queue.message_ttl), int(copy.expires))
        self.copies.append((queue, copy))
        if queue.stores(copy):
            self.by_expiry.setdefault(int(copy.expires), []).append((queue, copy))

    def stage_keys(self, message: Message) -> None:
        """Stage the deduplication key of the current message in the internal queues that store it, unless one refused it."""
        if len(self.refused) > self.refused_before:
            return
        for queue in self.window_queues:
            assert queue.stored_window is not None
            entry = queue.stored_window.make_entry(message, self.targets) if self.targets else None
            if entry is not None:
                if queue.stage(entry):
                    self.staged.append(queue)
                self.copies.append((queue, entry))
                if queue.stores(entry):
                    queue.store(entry)

    def put(self, end: float) -> bool:
        """Deliver or enqueue the staged messages until a time; return True when all are, and the queues are released.

        :param end: the time by `time.monotonic()`.
        """
        left: i64 = CHUNK
        while self.position < len(self.staged):
            if not self.staged[self.position].put_staged(end):
                return False
            self.position += 1
            left -= 1
            if not left:
                left = CHUNK
                if time.monotonic() >= end:
                    return False
        for queue, message in self.for_streams:
            if not queue.deleted and queue.publish(message) == STORED:
                self.is_stored = True
        for queue, message in self.refused:
            queue.limit.reject(message)
        return True

    def undo(self) -> None:
        """Release the queues, because staging has failed: nothing of the publish takes effect."""
        for queue, message in self.copies:
            if queue.stored_window is not None:
                queue.stored_window.remove(message)
        own = {id(message) for _, message in self.copies}
        for queue in self.staged:
            queue.unstage(own)
            queue.put_staged(float("inf"))


class BulkFanOut(BulkPublish):
    """Publish of one message to very many queues."""

    is_logged = False
    """True when the message is staged in all queues and passed to the log."""

    def __init__(self, vhost: VirtualHost, queues: list[Queue], message: Message) -> None:
        super().__init__(vhost)
        self.queues = queues
        self.message = message

    def step(self, end: float) -> bool:
        """Do a part of the publish, until `time.monotonic()` reaches `end`; return True when it is finished."""
        if not self.is_logged:
            if not self.stage(self.queues, self.message, end):
                return False
            self.is_logged = True
            self.copies = []
        self.is_done = self.put(end)
        return self.is_done

    def end(self) -> None:
        """End the publish: if it has failed, release the queues."""
        if not self.is_done:
            self.is_done = True
            if self.is_logged:
                self.put(float("inf"))
            else:
                self.refused.append((self.queues[0], self.message))
                self.undo()
