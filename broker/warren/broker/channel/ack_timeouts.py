"""How long a delivered message may stay unacknowledged (https://www.rabbitmq.com/docs/consumers#acknowledgement-timeout).

Counted exactly for each delivery, and off by default. When the time is over, the channel is closed with 406: what it had
returns to its queues.
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

MANY: Final = 1000
"""Beyond so many times of delivery, those that are close to each other count as one: the time is over a thousandth later."""


def timeout_of(arguments: QueueArguments, consumer: bytes, default: int, described: str) -> int:
    """Milliseconds; 0 is for ever: as the consumer says, else its queue, else the broker.

    :raises AmqpError: 406 for a consumer's x-consumer-timeout that is no time.
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


class Run:
    """Deliveries that came at one time, or close to it."""

    def __init__(self, time: float, tag: int) -> None:
        self.first = time
        self.last = time
        self.tag = tag


class AckDeadlines:
    """Those of one channel that have the same timeout."""

    def __init__(self, channel: Channel, timeout: int) -> None:
        self._channel = channel
        self._timeout = timeout
        self._runs: deque[Run] = deque()
        self._timer: Timer | None = None

    def delivered(self, tag: int) -> None:
        """A message has left, and is to be acknowledged."""
        now = self._channel.vhost.clock.now()
        runs = self._runs
        last = runs[-1] if runs else None
        if last is not None and (
            last.last == now or (len(runs) >= MANY and now - last.first < self._timeout / 1000 / MANY)
        ):
            last.last = now
            last.tag = tag
            return
        runs.append(Run(now, tag))
        if self._timer is None:
            self._watch()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._runs.clear()

    def _watch(self) -> None:
        due = self._runs[0].last + self._timeout / 1000
        self._timer = self._channel.vhost.clock.call_at(due, self._look)

    def _look(self) -> None:
        """The oldest delivery may be overdue, if it has not been acknowledged."""
        self._timer = None
        runs = self._runs
        oldest = self._oldest()
        while runs and (oldest is None or runs[0].tag < oldest):
            runs.popleft()
        if not runs:
            return
        # A whole number of milliseconds may lie a hair beside it as a float.
        if self._channel.vhost.clock.now() + 1e-6 < runs[0].last + self._timeout / 1000:
            self._watch()
            return
        connection = self._channel.connection
        connection.number = self._channel.number
        connection.class_id = connection.method_id = 0
        connection.conversation.refuse(
            connection,
            AmqpError(
                Reply.PRECONDITION_FAILED,
                f"delivery acknowledgement on channel {self._channel.number} timed out. Timeout value used: "
                f"{self._timeout} ms. This timeout value can be configured, see consumers doc guide to learn more",
            ),
        )

    def _oldest(self) -> int | None:
        """The lowest tag that is unacknowledged and has this timeout."""
        for tag, message in self._channel.unacked.items():
            consumer = message.consumer
            if consumer is not None and consumer.timeout == self._timeout:
                return tag
        return None
