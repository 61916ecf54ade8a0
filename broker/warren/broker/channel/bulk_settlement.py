"""Settlement of many unacknowledged messages at once, as bulk work: by one frame of the client, or the end of a channel."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Final, Optional

from mypy_extensions import i64

from warren.broker.channel.methods.stream_methods import refuse_return
from warren.broker.channel.transaction import ACKED, FAILED, REJECTED, REQUEUED
from warren.broker.model.message import Message
from warren.broker.model.queue.consumer import Consumer
from warren.broker.model.queue.queue import Queue
from warren.wire.reply_codes import AmqpError

if TYPE_CHECKING:
    from warren.broker.channel.channel import Channel
    from warren.broker.model.dead_letter.dead_lettering import DeadLetters

CHANNEL_ENDED: Final = 4
"""Settlement of the messages that are unacknowledged when their channel ends; they are requeued."""
BULK_MESSAGES: Final = 64
"""Unacknowledged messages of a channel from which on several of them are rejected or requeued as bulk work."""
BULK_ACKS: Final = 1000
"""Messages from which on they are acknowledged as bulk work; fewer take about a millisecond."""
CHUNK: Final = 16
"""Messages that are settled before the time is checked."""


class ReturnedMessages:
    """Messages that go back to one queue, or are rejected, in order.

    :param consumer: the consumer that held all of them; None if their channel has ended.
    """

    def __init__(self, queue: Queue, consumer: Optional[Consumer]) -> None:  # noqa: UP045
        self.queue = queue
        self.consumer = consumer
        self.messages: deque[Message] = deque()
        """Those that have yet to be returned. Each is let go of then: to free a million at once takes 0.2 s."""
        self.holds_queue = False
        """True while their queue delivers nothing because of them (`Queue.hold`): they are being put back into it."""
        self.last_batch: Optional[DeadLetters] = None  # noqa: UP045
        """Batch with the last of them that were rejected, while dead letters of the queue wait."""


class BulkSettlement:
    """Settlement of the messages of one channel up to a delivery tag, done in slices.

    The channel processes no frames until it is finished. First the messages are taken from the channel; then they are
    returned consumer by consumer, in the order of the consumer tags, as in RabbitMQ. A queue delivers nothing while
    messages are put back into it, so that their order holds.

    :param last: the delivery tag of the last message.
    :param settlement: ACKED, REQUEUED, REJECTED, FAILED or CHANNEL_ENDED.
    """

    def __init__(self, channel: Channel, last: i64, settlement: i64) -> None:
        self.channel = channel
        self.settlement = settlement
        self.last = last
        self.next: i64 = channel.lowest_tag
        """Delivery tag at which to continue."""
        self.sparse_tags: Optional[list[int]] = None  # noqa: UP045
        """Delivery tags of the messages, in reverse order, if most tags in between are settled already."""
        self.given: Optional[deque[Message]] = None  # noqa: UP045
        """Messages to settle that have left the channel already, in order; None to take those up to `last` from it."""
        self.begun = False
        self.groups: dict[object, ReturnedMessages] = {}
        """Messages that were taken, by their consumers; at the end of the channel by their queues."""
        self.order: list[ReturnedMessages] = []
        """Those groups in the order in which they are returned; filled when all messages are taken."""
        self.unfinished: list[ReturnedMessages] = []
        """The groups for whose queues `Queue.returns`, and perhaps `Queue.holds`, count this settlement."""
        self.current: i64 = 0
        """Index of the group in `order` that is being returned."""
        self.taken = False
        """True when all messages have been taken from the channel."""

    def step(self, end: float) -> bool:
        """Do a part of the settlement, until `time.monotonic()` reaches `end`; return True when it is finished."""
        if not self.taken:
            try:
                if not self.take(end):
                    return False
            except AmqpError as error:
                self.undo(error)
                return True
            self.taken = True
            self.order = list(self.groups.values())
            if self.settlement != CHANNEL_ENDED and len(self.order) > 1:
                self.order.sort(key=tag_of)
            self.groups = {}
        while self.current < len(self.order):
            group = self.order[self.current]
            done = self.reject(group, end) if self.settlement == REJECTED else self.requeue(group, end)
            if not done:
                return False
            self.leave(group)
            self.current += 1
        for group in self.order:
            batch = group.last_batch
            if batch is not None and not batch.is_done:
                return False
        self.finish()
        return True

    def end(self) -> None:
        """Let go of the queues, because the settlement has ended in any way: also if a step of it has failed."""
        for group in self.unfinished[:]:
            self.leave(group)

    def leave(self, group: ReturnedMessages) -> None:
        """Let go of the queue of a group: it may deliver, and may be deleted."""
        self.unfinished.remove(group)
        group.queue.returns -= 1
        if group.holds_queue:
            group.holds_queue = False
            group.queue.release()

    # -- taking messages from the channel

    def take(self, end: float) -> bool:
        """Take messages from the channel until a time; acknowledge them at once. Return True if none is left."""
        channel = self.channel
        if not self.begun and self.given is None:
            self.begun = True
            self.next = channel.lowest_tag
            if self.last - self.next > 2 * len(channel.unacked) + 64:
                # Most tags in between were acknowledged one by one, perhaps millions of them.
                self.sparse_tags = sorted(channel.unacked, reverse=True)
        while True:
            messages = self.take_chunk()
            if not messages:
                if self.given is None:
                    channel.lowest_tag = self.last + 1
                return True
            if self.settlement == ACKED:
                channel.settle(messages)
            else:
                if self.settlement != CHANNEL_ENDED:
                    refuse_return(channel, messages)
                for message in messages:
                    self.add(message)
            if time.monotonic() >= end:
                return False

    def take_chunk(self) -> list[Message]:
        """Remove a few messages from the channel's unacknowledged ones, in order; return none if none is left."""
        messages: list[Message] = []
        given = self.given
        if given is not None:
            while given and len(messages) < CHUNK:
                messages.append(given.popleft())
            return messages
        unacked = self.channel.unacked
        tags = self.sparse_tags
        if tags is not None:
            while tags and tags[-1] <= self.last and len(messages) < CHUNK:
                found = unacked.pop(tags.pop(), None)
                if found is not None:
                    messages.append(found)
            return messages
        while self.next <= self.last and len(messages) < CHUNK:
            found = unacked.pop(int(self.next), None)
            if found is not None:
                messages.append(found)
            self.next += 1
        self.channel.lowest_tag = self.next
        return messages

    def add(self, message: Message) -> None:
        """Add a message that was taken from the channel to those that go back to their queues."""
        consumer = message.consumer
        assert consumer is not None
        by_queue = self.settlement == CHANNEL_ENDED
        key: object = consumer.queue if by_queue else consumer
        group = self.groups.get(key)
        if group is None:
            group = self.groups[key] = ReturnedMessages(consumer.queue, None if by_queue else consumer)
            self.unfinished.append(group)
            # A deletion of the queue waits.
            consumer.queue.returns += 1
        group.messages.append(message)
        self.channel.counts.given_back += 1
        message.consumer = None
        capture = consumer.queue.capture
        if capture is not None:
            channel = self.channel
            identity = channel.captured_ids.pop(int(message.tag), "")
            if by_queue:
                capture.requeued_by_close(consumer, identity, channel.origin)
            elif self.settlement in (REQUEUED, FAILED):
                capture.requeued(consumer, identity, channel.origin)
            else:
                capture.rejected(consumer, identity, channel.origin)

    def undo(self, error: AmqpError) -> None:
        """Make the messages unacknowledged again, and close the connection: one of them is a message of a stream."""
        channel = self.channel
        for group in self.groups.values():
            channel.counts.given_back -= len(group.messages)
            for message in group.messages:
                if group.consumer is not None:
                    message.consumer = group.consumer
                channel.unacked[int(message.tag)] = message
                channel.lowest_tag = min(channel.lowest_tag, message.tag)
        self.groups = {}
        channel.connection.channel_number = channel.number
        channel.connection.lifecycle.handle_error(error)

    # -- returning them

    def reject(self, group: ReturnedMessages, end: float) -> bool:
        """Reject messages of one group until a time, so that they are dead-lettered; return True if none is left."""
        queue = group.queue
        dead_lettering = queue.vhost.dead_lettering
        while group.messages:
            if dead_lettering.is_behind(queue):
                return False
            chunk = self.next_chunk(group)
            queue.reject(chunk)
            if time.monotonic() >= end:
                break
        if group.messages:
            return False
        group.last_batch = dead_lettering.last_batch(queue)
        return True

    def requeue(self, group: ReturnedMessages, end: float) -> bool:
        """Put messages of one group back into their queue until a time; return True if none is left."""
        queue = group.queue
        if not group.holds_queue:
            group.holds_queue = True
            queue.hold()
        while group.messages:
            queue.reinsert_all(self.next_chunk(group), self.settlement in (FAILED, CHANNEL_ENDED))
            if time.monotonic() >= end:
                break
        if group.messages:
            return False
        if not queue.deleted:
            if group.consumer is not None:
                self.channel.readmit(group.consumer)
            queue.after_requeue()
        return True

    def next_chunk(self, group: ReturnedMessages) -> list[Message]:
        """Return the next messages of a group, which are no longer counted as unacknowledged by their consumer."""
        messages = group.messages
        chunk = [messages.popleft() for _ in range(min(CHUNK, len(messages)))]
        consumer = group.consumer
        if consumer is not None:
            for _ in chunk:
                self.channel.release(consumer)
        return chunk

    def finish(self) -> None:
        """Resume consumers that waited for room; at the end of the channel, those of other channels."""
        channel = self.channel
        if self.settlement == CHANNEL_ENDED:
            channel.offer_queues_left()
            return
        for group in self.order:
            consumer = group.consumer
            if consumer is not None and consumer.stalled:
                channel.wake(consumer)
        if channel.prefetch:
            channel.wake_all()


def tag_of(group: ReturnedMessages) -> bytes:
    """Return the consumer tag of the consumer that held a group of messages."""
    consumer = group.consumer
    return consumer.tag if consumer is not None else b""
