"""Acknowledgement timeouts: a consumer is suspended, or its channel closed, when a delivery stays unacknowledged too long.

https://www.rabbitmq.com/docs/consumers#acknowledgement-timeout. Off by default. The time is measured for each delivery.
An overdue delivery of a quorum queue is requeued, and its consumer suspended, as in RabbitMQ 4.3. Any other overdue
delivery closes the channel with 406, as before 4.3, which requeues all messages that are unacknowledged on it.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from warren.broker.channel.subscription import Subscription
from warren.broker.model.argument_checks import InvalidValue, argument_fields, non_negative
from warren.broker.model.message import Message
from warren.broker.model.queue.queue_arguments import QueueArguments
from warren.wire.reply_codes import AmqpError, Reply

if TYPE_CHECKING:
    from warren.broker.channel.channel import Channel
    from warren.broker.model.clock import Timer

logger = logging.getLogger(__name__)

MAX_EXACT_GROUPS: Final = 1000
"""Most groups of deliveries, by delivery time, that are tracked exactly for each timeout.

With more, deliveries close in time share a group: they then time out late, by at most 1/1000 of the timeout.
"""


def effective_ack_timeout(arguments: QueueArguments, consumer: bytes, default: int, described: str) -> int:
    """Return a consumer's acknowledgement timeout in milliseconds; 0 is none.

    The consumer's argument x-consumer-timeout overrides that of its queue, which overrides the broker's default.

    :param arguments: arguments of the queue.
    :param consumer: the consumer's arguments, an encoded table.
    :param default: the broker's timeout in milliseconds.
    :param described: description of the queue for error texts.
    :raises AmqpError: 406 for an invalid x-consumer-timeout of the consumer.
    """
    try:
        own = non_negative(argument_fields(consumer).get("x-consumer-timeout"))
    except InvalidValue as reason:
        raise AmqpError(
            Reply.PRECONDITION_FAILED, f"invalid arg 'x-consumer-timeout' for {described}: {reason}"
        ) from None
    if own >= 0:
        return own
    return arguments.consumer_timeout if arguments.consumer_timeout >= 0 else default


class DeliveryGroup:
    """Consecutive deliveries of one channel, made at nearly the same time, that share one deadline.

    :ivar first: time of the first delivery in seconds, by the broker's clock.
    :ivar last: time of the last delivery; the deadline is this time plus the acknowledgement timeout.
    :ivar last_tag: delivery tag of the last delivery.
    """

    def __init__(self, time: float, tag: int) -> None:
        self.first = time
        self.last = time
        self.last_tag = tag


class AckDeadlines:
    """Acknowledgement deadlines of those deliveries of one channel that have the same timeout.

    :param timeout: acknowledgement timeout in milliseconds, more than 0.
    """

    def __init__(self, channel: Channel, timeout: int) -> None:
        self._channel = channel
        self._timeout = timeout
        self._groups: deque[DeliveryGroup] = deque()
        self._timer: Timer | None = None

    def on_delivery(self, tag: int) -> None:
        """Record the time of a delivery, by its delivery tag, and start the timer if it is not running."""
        now = self._channel.vhost.clock.now()
        groups = self._groups
        last = groups[-1] if groups else None
        if last is not None and (
            last.last == now
            or (
                len(groups) >= MAX_EXACT_GROUPS and now - last.first < self._timeout / 1000 / MAX_EXACT_GROUPS
            )
        ):
            last.last = now
            last.last_tag = tag
            return
        groups.append(DeliveryGroup(now, tag))
        if self._timer is None:
            self._schedule()

    def stop(self) -> None:
        """Stop the timer and discard all deadlines, because the channel closes."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._groups.clear()

    def _schedule(self) -> None:
        due = self._groups[0].last + self._timeout / 1000
        self._timer = self._channel.vhost.clock.call_at(due, self._check)

    def _check(self) -> None:
        """End the deliveries that are overdue, and schedule the next check."""
        bulk_work = self._channel.vhost.bulk_work
        if bulk_work.is_pending(self._channel.connection):
            # Messages that the client has settled may still be in the channel's list of unacknowledged ones.
            # `_timer` stays set, so that no delivery starts another one.
            bulk_work.after(self._channel.connection, self._check)
            return
        self._timer = None
        groups = self._groups
        oldest = self._oldest_unacknowledged()
        while groups and (oldest is None or groups[0].last_tag < oldest):
            groups.popleft()
        # A whole number of milliseconds may differ slightly from its value as a float.
        end = self._channel.vhost.clock.now() + 1e-6 - self._timeout / 1000
        last = 0
        while groups and groups[0].last <= end:
            last = groups.popleft().last_tag
        if last:
            self._end_deliveries(self._unacknowledged_up_to(last))
        if groups and self._timer is None:
            self._schedule()

    def _end_deliveries(self, overdue: list[Message]) -> None:
        """Suspend the consumers of overdue messages, and requeue these; close the channel if one of them has to be.

        RabbitMQ 4.3 suspends consumers of quorum queues only, if the client supports basic.cancel and has not cancelled
        the consumer itself (rabbit_channel, handle_queue_actions).
        """
        channel = self._channel
        consumers: dict[Subscription, int] = {}
        for message in overdue:
            consumer = message.consumer
            if not isinstance(consumer, Subscription) or not may_suspend(channel, consumer):
                self._close_channel()
                return
            consumers[consumer] = consumers.get(consumer, 0) + 1
        for consumer, count in consumers.items():
            consumer.timed_out += count
            consumer.was_suspended = True
            consumer.queue.scheduler.suspend_timed_out(consumer)
            logger.warning(
                "event=consumer.timed_out peer=%s channel=%d consumer=%r queue=%r messages=%d timeout_ms=%d",
                channel.connection.peer,
                channel.number,
                consumer.tag.decode(errors="replace"),
                consumer.queue.name.decode(errors="replace"),
                count,
                self._timeout,
            )
            channel.connection.notify_consumer_cancelled(channel.number, consumer.tag)
        for message in overdue:
            consumer = message.consumer
            assert isinstance(consumer, Subscription)
            del channel.unacked[int(message.tag)]
            channel.timed_out[int(message.tag)] = consumer
        channel.requeue_timed_out(overdue)
        for consumer in consumers:
            # With a single active consumer, another one may have taken over.
            consumer.queue.drain()

    def _close_channel(self) -> None:
        self._channel.connection.lifecycle.fail_channel(
            int(self._channel.number),
            AmqpError(
                Reply.PRECONDITION_FAILED,
                f"delivery acknowledgement on channel {self._channel.number} timed out. Timeout value used: "
                f"{self._timeout} ms. This timeout value can be configured, see consumers doc guide to learn more",
            ),
        )

    def _unacknowledged_up_to(self, last: int) -> list[Message]:
        """Return the unacknowledged messages, up to a delivery tag, that were delivered to consumers with this timeout."""
        found = []
        is_sorted = self._channel.tx is None
        for tag, message in self._channel.unacked.items():
            if tag > last:
                if is_sorted:
                    break
                continue
            consumer = message.consumer
            if consumer is not None and consumer.timeout == self._timeout:
                found.append(message)
        return found

    def _oldest_unacknowledged(self) -> int | None:
        """Return the tag of the oldest unacknowledged delivery to a consumer with this timeout; None without one."""
        for tag, message in self._channel.unacked.items():
            consumer = message.consumer
            if consumer is not None and consumer.timeout == self._timeout:
                return tag
        return None


def may_suspend(channel: Channel, consumer: Subscription) -> bool:
    """Return whether a consumer whose delivery is overdue is suspended; otherwise its channel is closed."""
    return (
        consumer.queue.arguments.quorum
        and channel.vhost.compat.suspends_timed_out_consumers
        and channel.connection.supports_cancel
        and channel.subscriptions.get(consumer.tag) is consumer
    )


def settle_timed_out(channel: Channel, tag: i64) -> bool:
    """Settle a delivery that a timeout has requeued already: it has no effect on the message.

    A consumer gets messages again when all of its deliveries that have timed out are settled.

    :return: False if no such delivery has this tag.
    """
    consumer = channel.timed_out.pop(int(tag), None)
    if consumer is None:
        return False
    consumer.timed_out -= 1
    if not consumer.timed_out and channel.subscriptions.get(consumer.tag) is consumer:
        consumer.queue.scheduler.resume_timed_out(consumer)
        consumer.queue.drain()
    return True


def settle_timed_out_up_to(channel: Channel, last: i64) -> None:
    """Settle all deliveries up to a tag that a timeout has requeued already."""
    for tag in [tag for tag in channel.timed_out if tag <= last]:
        settle_timed_out(channel, tag)
