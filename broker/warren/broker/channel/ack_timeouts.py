"""Acknowledgement timeouts: a channel is closed with 406 when a delivery stays unacknowledged for too long.

https://www.rabbitmq.com/docs/consumers#acknowledgement-timeout. Off by default. The time is measured for each delivery.
One overdue delivery closes the channel, which requeues all messages that are unacknowledged on it.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from warren.broker.model.argument_checks import InvalidValue, argument_fields, non_negative
from warren.broker.model.queue.queue_arguments import QueueArguments
from warren.wire.reply_codes import AmqpError, Reply

if TYPE_CHECKING:
    from warren.broker.channel.channel import Channel
    from warren.broker.model.clock import Timer

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
        """Close the channel if the oldest unacknowledged delivery is overdue; else schedule the next check."""
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
        if not groups:
            return
        # A whole number of milliseconds may differ slightly from its value as a float.
        if self._channel.vhost.clock.now() + 1e-6 < groups[0].last + self._timeout / 1000:
            self._schedule()
            return
        self._channel.connection.lifecycle.fail_channel(
            int(self._channel.number),
            AmqpError(
                Reply.PRECONDITION_FAILED,
                f"delivery acknowledgement on channel {self._channel.number} timed out. Timeout value used: "
                f"{self._timeout} ms. This timeout value can be configured, see consumers doc guide to learn more",
            ),
        )

    def _oldest_unacknowledged(self) -> int | None:
        """Return the tag of the oldest unacknowledged delivery to a consumer with this timeout; None without one."""
        for tag, message in self._channel.unacked.items():
            consumer = message.consumer
            if consumer is not None and consumer.timeout == self._timeout:
                return tag
        return None
