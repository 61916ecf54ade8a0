"""Transaction of a channel: its publishes and acknowledgements take effect at tx.commit.

https://www.rabbitmq.com/docs/semantics#tx. A message is routed when it is published, and enqueued at the commit. The
persistent part of a transaction is one record of the log: after a crash all of it is there, or nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from warren.broker.channel.methods.stream_methods import refuse_return
from warren.broker.channel.publish_outcome import capture_published, handle_unroutable
from warren.broker.model.deduplication import DUPLICATE
from warren.broker.model.message import Message
from warren.broker.model.queue.queue import ACCEPTED, STORED, Queue
from warren.broker.model.vhost.bulk_publish import BULK_COPIES
from warren.broker.operations.publishing import drop_reason
from warren.wire.reply_codes import AmqpError, Reply

if TYPE_CHECKING:
    from warren.broker.channel.channel import Channel, PublishTarget

ACKED: Final = 0
REQUEUED: Final = 1
"""Settlement by basic.nack or basic.recover with requeue, which does not count against a delivery limit."""
REJECTED: Final = 2
FAILED: Final = 3
"""Settlement by basic.reject with requeue, which counts against a delivery limit."""

MAX_BYTES: Final = 128 * 1024 * 1024
"""Most bytes of message content that may wait for one tx.commit."""
BULK_BYTES: Final = 1024 * 1024
"""Bytes of message content above which a transaction is committed as bulk work."""
MAX_ACTIONS: Final = 500_000
"""Most publishes and acknowledgements that may wait for one tx.commit."""


class PendingPublish:
    """Publish of a transaction that waits for tx.commit, with the queues that its message was routed to."""

    def __init__(self, target: PublishTarget, queues: list[Queue], message: Message) -> None:
        self.target = target
        self.queues = queues
        self.message = message


class Transaction:
    """Publishes and acknowledgements of one channel since tx.select, the last commit, or the last rollback."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.publishes: list[PendingPublish] = []
        self.settled: list[list[Message]] = [[], [], [], []]
        """Messages to settle at the commit: a list for each of ACKED, REQUEUED, REJECTED and FAILED."""
        self.bytes: i64 = 0
        """Bytes of the content of all pending publishes."""
        self.copies: i64 = 0
        """Number of queues that all pending publishes were routed to, each counted once for each of its messages."""

    def publish(self, target: PublishTarget, queues: list[Queue], message: Message) -> None:
        """Record a publish whose message is to be enqueued at the commit.

        :param queues: queues that the message was routed to; those deleted before the commit do not get it.
        :raises AmqpError: 406 if the transaction becomes too large.
        """
        self.publishes.append(PendingPublish(target, queues, message))
        self.bytes += len(message.content)
        self.copies += len(queues)
        self.check_size()

    def settle(self, messages: list[Message], settlement: i64) -> None:
        """Record messages that are to be acknowledged, requeued or rejected at the commit.

        :param settlement: ACKED, REQUEUED, REJECTED or FAILED.
        :raises AmqpError: 406 if the transaction becomes too large.
        """
        self.settled[settlement].extend(messages)
        self.check_size()

    def check_size(self) -> None:
        """Check that the transaction is not too large: it is kept in memory, and becomes one record of the log.

        :raises AmqpError: 406 if it is too large.
        """
        actions = len(self.publishes) + self.settled_count()
        if self.bytes > MAX_BYTES or actions > MAX_ACTIONS:
            raise AmqpError(
                Reply.PRECONDITION_FAILED,
                f"transaction of {actions} actions and {self.bytes} bytes is too large: commit after at most "
                f"{MAX_ACTIONS} actions and {MAX_BYTES} bytes",
            )

    def settled_count(self) -> i64:
        """Return the number of messages that the commit acknowledges, requeues or rejects."""
        settled = self.settled
        return len(settled[ACKED]) + len(settled[REQUEUED]) + len(settled[REJECTED]) + len(settled[FAILED])

    @property
    def is_large(self) -> bool:
        """True if it is to be committed as bulk work, by `BulkCommit`, since its commit takes more than a few milliseconds.

        It is never so if life-cycle events are recorded.
        """
        count = self.copies + self.settled_count()
        return (count > BULK_COPIES or self.bytes > BULK_BYTES) and self.channel.capture is None

    def take(self) -> tuple[list[PendingPublish], list[list[Message]]]:
        """Return the publishes and the settlements for a commit, and begin the next transaction.

        :raises AmqpError: 540 if a message of a stream is requeued or rejected; the transaction stays as it is.
        """
        refuse_return(self.channel, self.settled[REQUEUED])
        refuse_return(self.channel, self.settled[REJECTED])
        refuse_return(self.channel, self.settled[FAILED])
        taken = self.publishes, self.settled
        self.publishes, self.settled, self.bytes, self.copies = [], [[], [], [], []], 0, 0
        return taken

    def commit(self) -> i64:
        """Carry out all publishes, then all acknowledgements and rejections; return their common outcome.

        STORED: tx.commit-ok has to wait until the log is on disk. REJECTED: a queue refused a publish, which makes
        tx.commit fail. ACCEPTED: tx.commit-ok may be sent at once.
        """
        channel = self.channel
        publishes, settled = self.take()
        vhost = channel.vhost
        capture = channel.capture
        outcome: i64 = ACCEPTED
        # Dead letters that a publish or a rejection causes are records of their own; they follow the transaction's.
        vhost.dead_lettering.defer()
        log = vhost.log
        if log is not None:
            log.begin_group()
        try:
            for publish in publishes:
                queues = [queue for queue in publish.queues if not queue.deleted]
                if not queues and publish.queues is DUPLICATE:
                    continue
                if capture is not None:
                    capture.publish_started(channel.origin, publish.message, drop_reason(queues))
                taken: i64 = ACCEPTED
                if not queues:
                    handle_unroutable(channel, publish.target, publish.queues, publish.message)
                else:
                    taken = vhost.deliver(queues, publish.message)
                    outcome = max(outcome, taken)
                if capture is not None:
                    capture_published(channel, capture, publish.message, taken)
            for messages in settled:
                for message in messages:
                    consumer = message.consumer
                    assert consumer is not None
                    # Acknowledgements to a deleted queue are not logged, so nothing waits for them.
                    if message.stored and outcome == ACCEPTED and not consumer.queue.deleted:
                        outcome = STORED
            channel.settle(settled[ACKED])
        finally:
            if log is not None:
                log.end_group()
            vhost.dead_lettering.resume()
        if settled[REQUEUED]:
            channel.return_to_queues(settled[REQUEUED], True)
        if settled[FAILED]:
            channel.return_to_queues(settled[FAILED], True, failed=True)
        if settled[REJECTED]:
            channel.return_to_queues(settled[REJECTED], False)
        return outcome

    def rollback(self) -> None:
        """Discard the publishes; messages that the transaction acknowledged or rejected are unacknowledged again."""
        self.publishes, self.bytes, self.copies = [], 0, 0
        settled = self.settled
        self.settled = [[], [], [], []]
        for messages in settled:
            self.channel.put_back(messages)
