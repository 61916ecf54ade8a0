"""A channel's transaction: publishes and acknowledgements that wait for tx.commit.

https://www.rabbitmq.com/docs/semantics#tx. Where a message goes is settled when it is published; it goes there at the
commit. What is persistent in it is one record of the log: after a crash all of it is there, or nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from warren.broker.channel.methods.stream_methods import refuse_return
from warren.broker.channel.publish_slow_path import published, unroutable, untaken
from warren.broker.connection.peer_limits import TRANSACTION_ACTIONS, TRANSACTION_BYTES
from warren.broker.model.deduplication import DUPLICATE
from warren.broker.model.message import Message
from warren.broker.model.queue.queue import ACCEPTED, STORED, Queue
from warren.wire.reply_codes import AmqpError, Reply

if TYPE_CHECKING:
    from warren.broker.channel.channel import Channel, Target

ACKED: Final = 0
REQUEUED: Final = 1
REJECTED: Final = 2


class Publish:
    """A message, and the queues that it was routed to."""

    def __init__(self, target: Target, queues: list[Queue], message: Message) -> None:
        self.target = target
        self.queues = queues
        self.message = message


class Transaction:
    """What one channel has done since tx.select, the last commit, or the last rollback."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.publishes: list[Publish] = []
        self.settled: list[tuple[Message, int]] = []
        self.bytes: i64 = 0
        """The content of the publishes."""

    def publish(self, target: Target, queues: list[Queue], message: Message) -> None:
        """Keep it until the commit.

        :raises AmqpError: 406 if the transaction becomes too large.
        """
        self.publishes.append(Publish(target, queues, message))
        self.bytes += len(message.content)
        self.assert_bounded()

    def settle(self, messages: list[Message], how: i64) -> None:
        """Messages that are no longer outstanding, unless the transaction is rolled back."""
        for message in messages:
            self.settled.append((message, int(how)))
        self.assert_bounded()

    def assert_bounded(self) -> None:
        """What waits for the commit is in memory, and is one record of the log: it must not grow without end."""
        actions = len(self.publishes) + len(self.settled)
        if self.bytes > TRANSACTION_BYTES or actions > TRANSACTION_ACTIONS:
            raise AmqpError(
                Reply.PRECONDITION_FAILED,
                f"transaction of {actions} actions and {self.bytes} bytes is too large: commit after at most "
                f"{TRANSACTION_ACTIONS} actions and {TRANSACTION_BYTES} bytes",
            )

    def commit(self) -> i64:
        """Carry it all out, publishes first.

        STORED if something of it goes to the log's collecting batch, REFUSED if a queue refused a publish, else TAKEN.
        """
        channel = self.channel
        refuse_return(channel, [message for message, how in self.settled if how != ACKED])
        publishes, settled = self.publishes, self.settled
        self.publishes, self.settled, self.bytes = [], [], 0
        vhost = channel.vhost
        capture = channel.capture
        outcome: i64 = ACCEPTED
        # Dead letters that a publish or a rejection causes are records of their own; they follow.
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
                    capture.publish_started(channel.origin, publish.message, untaken(queues))
                taken: i64 = ACCEPTED
                if not queues:
                    unroutable(channel, publish.target, publish.queues, publish.message)
                else:
                    taken = vhost.deliver(queues, publish.message)
                    outcome = max(outcome, taken)
                if capture is not None:
                    published(channel, capture, publish.message, taken)
            by_way: tuple[list[Message], list[Message], list[Message]] = ([], [], [])
            for message, how in settled:
                by_way[how].append(message)
                consumer = message.consumer
                assert consumer is not None
                # What ended with its queue is not written down, and not waited for.
                if message.stored and outcome == ACCEPTED and not consumer.queue.deleted:
                    outcome = STORED
            channel.settle(by_way[ACKED])
        finally:
            if log is not None:
                log.end_group()
            vhost.dead_lettering.resume()
        if by_way[REQUEUED]:
            channel.give_back(by_way[REQUEUED], True)
        if by_way[REJECTED]:
            channel.give_back(by_way[REJECTED], False)
        return outcome

    def rollback(self) -> None:
        """Forget the publishes; what was acknowledged is outstanding again."""
        self.publishes, self.bytes = [], 0
        settled = self.settled
        self.settled = []
        channel = self.channel
        for message, _ in settled:
            channel.unacked[int(message.tag)] = message
            channel.lowest_tag = min(channel.lowest_tag, message.tag)
