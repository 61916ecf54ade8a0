"""Commit of a large transaction as bulk work: in slices, and yet one record of the log."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, Optional

from mypy_extensions import i64

from warren.broker.channel.bulk_settlement import BulkSettlement
from warren.broker.channel.publish_outcome import handle_unroutable
from warren.broker.channel.transaction import ACKED, FAILED, REJECTED, REQUEUED
from warren.broker.model.deduplication import DUPLICATE
from warren.broker.model.vhost.bulk_publish import BulkPublish
from warren.wire.reply_codes import AmqpError, Reply

if TYPE_CHECKING:
    from warren.broker.channel.channel import Channel
    from warren.broker.channel.transaction import PendingPublish
    from warren.broker.model.message import Message
    from warren.broker.model.queue.queue import Queue
    from warren.broker.store.log.record_group import RecordGroup

CHUNK: Final = 16
"""Messages that are acknowledged before the time is checked."""

STAGING: Final = 0
"""Phase: the messages of the publishes get their places in the queues, and are added to the record of the log."""
SETTLING: Final = 1
"""Phase: messages are acknowledged, which is added to the record as well."""
ENQUEUING: Final = 2
"""Phase: the record is in the log, and the messages are delivered or enqueued."""
RETURNING: Final = 3
"""Phase: messages are requeued or rejected, which RabbitMQ does last, too."""
FINISHED: Final = 4


class BulkCommit(BulkPublish):
    """Commit of a transaction in slices. After a crash, all of its persistent part is there, or nothing.

    Once begun it is carried out as a whole, even if the connection is lost meanwhile.

    :param publishes: the publishes of the transaction.
    :param settled: the messages that it settles: a list for each of ACKED, REQUEUED, REJECTED and FAILED.
    """

    def __init__(
        self, channel: Channel, publishes: list[PendingPublish], settled: list[list[Message]]
    ) -> None:
        super().__init__(channel.vhost)
        self.channel = channel
        self.publishes = deque(publishes)
        """Publishes that are not staged yet."""
        self.acked = deque(settled[ACKED])
        """Messages that are not acknowledged yet."""
        self.returned = {kind: deque(settled[kind]) for kind in (REQUEUED, FAILED, REJECTED)}
        """Messages to requeue and to reject, by their settlement."""
        self.phase: i64 = STAGING
        self.queues: Optional[list[Queue]] = None  # noqa: UP045
        """Queues in which the first of `publishes` is staged; None before its first slice."""
        self.group: Optional[RecordGroup] = None  # noqa: UP045
        """Record of the log under construction; None before the first slice, or without a log."""
        self.settlements: deque[BulkSettlement] = deque()
        """Unfinished work of the phase RETURNING."""

    def step(self, end: float) -> bool:
        """Do a part of the commit, until `time.monotonic()` reaches `end`; return True when all messages are enqueued.

        Messages are returned in a lane of its own: that waits for dead letters, which may wait for the lane of publishes.
        """
        if self.phase < ENQUEUING:
            self.collect(end)
        if self.phase == ENQUEUING and self.put(end):
            self.phase = RETURNING
            for settlement, messages in self.returned.items():
                if messages:
                    job = BulkSettlement(self.channel, 0, settlement)
                    job.given = messages
                    self.settlements.append(job)
            self.vhost.bulk_work.run(self, self.return_messages, self.end_returns)
        return self.phase >= RETURNING

    def end(self) -> None:
        """End the enqueuing. If it has failed in the middle, undo what is not in the log, and fail the connection."""
        if self.phase >= RETURNING:
            return
        if self.phase < ENQUEUING:
            self.undo()
        else:
            self.put(float("inf"))
        self.fail()

    def end_returns(self) -> None:
        """End the returning of messages. If it has failed in the middle, fail the connection."""
        for job in self.settlements:
            job.end()
        if self.phase == FINISHED:
            self.is_done = True
        else:
            self.fail()

    def fail(self) -> None:
        """Make the messages that are not settled unacknowledged again, and fail the connection."""
        self.is_done = True
        channel = self.channel
        for messages in (self.acked, *self.returned.values()):
            channel.put_back(messages)
        channel.connection.lifecycle.close(AmqpError(Reply.INTERNAL_ERROR, "the transaction has failed"))

    def collect(self, end: float) -> None:
        """Stage publishes and acknowledge messages until a time. After the last one, append the record to the log.

        :param end: the time by `time.monotonic()`.
        """
        log = self.vhost.log
        dead_lettering = self.vhost.dead_lettering
        # Dead letters that an acknowledgement causes are records of their own.
        dead_lettering.defer()
        if log is not None:
            log.begin_group(self.group)
        try:
            if self.phase == STAGING and self.stage_publishes(end):
                self.phase = SETTLING
            if self.phase == SETTLING and self.acknowledge(end):
                self.phase = ENQUEUING
                self.copies = []
        finally:
            if log is not None:
                if self.phase == ENQUEUING:
                    log.end_group()
                else:
                    self.group = log.suspend_group()
            dead_lettering.resume()

    def stage_publishes(self, end: float) -> bool:
        """Stage publishes until a time; return True if none is left.

        :param end: the time by `time.monotonic()`.
        """
        publishes = self.publishes
        while publishes:
            publish = publishes[0]
            if self.queues is None:
                self.queues = [queue for queue in publish.queues if not queue.deleted]
                if not self.queues and publish.queues is not DUPLICATE:
                    handle_unroutable(self.channel, publish.target, publish.queues, publish.message)
            if self.queues and not self.stage(self.queues, publish.message, end):
                return False
            self.queues = None
            publishes.popleft()
            if time.monotonic() >= end:
                return False
        return True

    def acknowledge(self, end: float) -> bool:
        """Acknowledge messages until a time; return True if none is left.

        :param end: the time by `time.monotonic()`.
        """
        acked = self.acked
        while acked:
            chunk = [acked.popleft() for _ in range(min(CHUNK, len(acked)))]
            if not self.is_stored:
                self.is_stored = is_logged(chunk)
            self.channel.settle(chunk)
            if acked and time.monotonic() >= end:
                return False
        for messages in self.returned.values():
            if not self.is_stored:
                self.is_stored = is_logged(messages)
        return True

    def return_messages(self, end: float) -> bool:
        """Requeue and reject messages until a time; return True if none is left.

        :param end: the time by `time.monotonic()`.
        """
        while self.settlements:
            job = self.settlements[0]
            if not job.step(end):
                return False
            job.end()
            self.settlements.popleft()
        self.phase = FINISHED
        return True


def is_logged(messages: Iterable[Message]) -> bool:
    """Return True if the log records the settlement of one of these messages; not if its queue is deleted."""
    for message in messages:
        consumer = message.consumer
        assert consumer is not None
        if message.stored and not consumer.queue.deleted:
            return True
    return False
