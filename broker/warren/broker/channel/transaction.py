"""Transaction of a channel: its publishes and acknowledgements take effect at tx.commit.

https://www.rabbitmq.com/docs/semantics#tx. A message is routed when it is published, and enqueued at the commit. The
persistent part of a transaction is one record of the log: after a crash all of it is there, or nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from warren.broker.channel.methods.stream_methods import refuse_return
from warren.broker.channel.publish_slow_path import capture_published, drop_reason, handle_unroutable
from warren.broker.model.deduplication import DUPLICATE
from warren.broker.model.message import Message
from warren.broker.model.queue.queue import ACCEPTED, STORED, Queue
from warren.wire.reply_codes import AmqpError, Reply

if TYPE_CHECKING:
    from warren.broker.channel.channel import Channel, PublishTarget

ACKED: Final = 0
REQUEUED: Final = 1
REJECTED: Final = 2

MAX_BYTES: Final = 128 * 1024 * 1024
"""Most bytes of message content that may wait for one tx.commit."""
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
        self.settled: list[tuple[Message, int]] = []
        """(message, settlement) of each acknowledged, requeued or rejected message: ACKED, REQUEUED or REJECTED."""
        self.bytes: i64 = 0
        """Bytes of the content of all pending publishes."""

    def publish(self, target: PublishTarget, queues: list[Queue], message: Message) -> None:
        """Record a publish whose message is to be enqueued at the commit.

        :param queues: queues that the message was routed to; those deleted before the commit do not get it.
        :raises AmqpError: 406 if the transaction becomes too large.
        """
        self.publishes.append(PendingPublish(target, queues, message))
        self.bytes += len(message.content)
        self.check_size()

    def settle(self, messages: list[Message], settlement: i64) -> None:
        """Record messages that are to be acknowledged, requeued or rejected at the commit.

        :param settlement: ACKED, REQUEUED or REJECTED.
        :raises AmqpError: 406 if the transaction becomes too large.
        """
        for message in messages:
            self.settled.append((message, int(settlement)))
        self.check_size()

    def check_size(self) -> None:
        """Check that the transaction is not too large: it is kept in memory, and becomes one record of the log.

        :raises AmqpError: 406 if it is too large.
        """
        actions = len(self.publishes) + len(self.settled)
        if self.bytes > MAX_BYTES or actions > MAX_ACTIONS:
            raise AmqpError(
                Reply.PRECONDITION_FAILED,
                f"transaction of {actions} actions and {self.bytes} bytes is too large: commit after at most "
                f"{MAX_ACTIONS} actions and {MAX_BYTES} bytes",
            )

    def commit(self) -> i64:
        """Carry out all publishes, then all acknowledgements and rejections; return their common outcome.

        STORED: tx.commit-ok has to wait until the log is on disk. REJECTED: a queue refused a publish, which makes
        tx.commit fail. ACCEPTED: tx.commit-ok may be sent at once.
        """
        channel = self.channel
        refuse_return(channel, [message for message, settlement in self.settled if settlement != ACKED])
        publishes, settled = self.publishes, self.settled
        self.publishes, self.settled, self.bytes = [], [], 0
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
            by_settlement: tuple[list[Message], list[Message], list[Message]] = ([], [], [])
            for message, settlement in settled:
                by_settlement[settlement].append(message)
                consumer = message.consumer
                assert consumer is not None
                # Acknowledgements to a deleted queue are not logged, so nothing waits for them.
                if message.stored and outcome == ACCEPTED and not consumer.queue.deleted:
                    outcome = STORED
            channel.settle(by_settlement[ACKED])
        finally:
            if log is not None:
                log.end_group()
            vhost.dead_lettering.resume()
        if by_settlement[REQUEUED]:
            channel.return_to_queues(by_settlement[REQUEUED], True)
        if by_settlement[REJECTED]:
            channel.return_to_queues(by_settlement[REJECTED], False)
        return outcome

    def rollback(self) -> None:
        """Discard the publishes; messages that the transaction acknowledged or rejected are unacknowledged again."""
        self.publishes, self.bytes = [], 0
        settled = self.settled
        self.settled = []
        channel = self.channel
        for message, _ in settled:
            channel.unacked[int(message.tag)] = message
            channel.lowest_tag = min(channel.lowest_tag, message.tag)
