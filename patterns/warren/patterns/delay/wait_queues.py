"""Constant delays: one wait queue per delay, with a TTL after which its messages move to their target queue."""

from __future__ import annotations

import logging
from collections.abc import Collection
from datetime import timedelta
from hashlib import sha256
from typing import Final

from warren.sdk import App, ConfigError, Delivery, Queue
from warren.sdk.extend import ATTEMPT, ORIGIN_EXCHANGE, ORIGIN_KEY, Duration, duration, milliseconds, origin

log: logging.Logger = logging.getLogger("warren.patterns")

NAME_BYTES: Final = 255
"""Largest length of a queue's name in AMQP 0-9-1, in bytes of UTF-8."""
MANY: Final = 30
"""Number of wait queues for the same target queue at which a warning is logged: delays that vary would create a queue
for each value."""


def wait_queue(target: str, after: Duration) -> Queue:
    """Return the queue `<target>.wait.<ms>`: messages published to it move to the queue `target` after `after`.

    :param after: a `timedelta`, seconds, or a text such as `5s`; rounded up to whole milliseconds. The broker's greatest TTL
        is the limit (in RabbitMQ ten years).
    """
    wait = milliseconds(duration(after, "after"))
    return Queue(
        f"{target}.wait.{wait}",
        message_ttl=timedelta(milliseconds=wait or 0),
        dead_letter_exchange="",
        dead_letter_routing_key=target,
        delivery_limit=None,
    )


def target_address(exchange: str, key: str) -> str:
    """Return a text that differs for each exchange and routing key: its first word says how many words are the exchange.

    :param exchange: empty for the queue `key`.
    """
    return f"x{exchange.count('.') + 1}.{exchange}.{key}" if exchange else f"t.{key}"


def forwarding_queue(prefix: str, exchange: str, key: str) -> Queue:
    """Return a queue that moves each message to `exchange` with the routing key `key` at once, or as soon as that exists
    and takes the message. Its name begins with `prefix` and differs for each address.

    The queue stands when its target is deleted and declared again, while a binding of the target would be lost.

    :param exchange: empty for the queue `key`.
    """
    address = target_address(exchange, key)
    name = f"{prefix}.{address}"
    if len(name.encode()) > NAME_BYTES:
        name = f"{prefix}.{sha256(address.encode()).hexdigest()}"
    return Queue(
        name,
        message_ttl=timedelta(0),
        dead_letter_exchange=exchange,
        dead_letter_routing_key=key,
        delivery_limit=None,
    )


class WaitQueues:
    """Redelivery of messages that a retry policy delays, by a `wait_queue` for each queue and delay;
    `App(delay=WaitQueues())`.

    Used by default if a retry policy has delays. A delay takes one hop and is exact to the millisecond. There is one
    quorum queue for each combination of queue and delay. With delays that vary (jitter) there would be a queue for each
    value: use `Delay` for those.
    """

    def __init__(self) -> None:
        self._app: App | None = None
        self._declared: dict[str, set[str]] = {}

    def register(self, app: App) -> None:
        self._app = app

    async def on_start(self) -> None:
        """Do nothing: queues are declared when they are first needed."""

    async def on_stop(self) -> None:
        """Do nothing: messages continue to wait in the broker."""

    def reach(self, queue: str, delays: Collection[timedelta]) -> list[Queue]:
        """Return the wait queues that the App must declare so that messages of `queue` can be delayed by these
        durations before a retry.

        :param queue: queue to which the messages return after the delay.
        :param delays: durations above 0; others need no queue and are left out.
        """
        queues = [wait_queue(queue, delay) for delay in delays if delay > timedelta(0)]
        self._declared.setdefault(queue, set()).update(waiting.name for waiting in queues)
        return queues

    async def redeliver(self, delivery: Delivery, queue: str, after: timedelta) -> None:
        """Publish a copy of the delivery that arrives in `queue` after the delay `after`, with the number of the next
        attempt in a header. Return when the broker has confirmed the copy, so that the original can be acknowledged."""
        if self._app is None:
            raise ConfigError("these WaitQueues belong to no App: give them to App(delay=WaitQueues())")
        headers = redelivery_headers(delivery)
        if after <= timedelta(0):
            await self._app.forward(delivery, key=queue, headers=headers)
            return
        waiting = wait_queue(queue, after)
        declared = self._declared.setdefault(queue, set())
        if waiting.name not in declared:
            await self._app.declare_now(waiting)
            declared.add(waiting.name)
            if len(declared) == MANY:
                log.warning("event=wait_queue.limit_exceeded queue=%s wait_queues=%d", queue, MANY)
        await self._app.forward(delivery, key=waiting.name, headers=headers)


def redelivery_headers(delivery: Delivery) -> dict[str, object]:
    """Return the headers for a copy of the delivery that is published for the next attempt to handle it: the attempt's
    number, and the exchange and routing key of the first publish."""
    exchange, key = origin(delivery)
    return {ATTEMPT: delivery.attempt + 1, ORIGIN_EXCHANGE: exchange, ORIGIN_KEY: key}


__all__ = [
    "NAME_BYTES",
    "WaitQueues",
    "forwarding_queue",
    "redelivery_headers",
    "target_address",
    "wait_queue",
]
