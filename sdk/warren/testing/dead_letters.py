"""Collection of dead letters in a test: copies of all messages that the Apps' queues dead-letter."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar
from uuid import uuid4

from warren.sdk import DEAD_LETTER_EXCHANGE, App, Binding, Declarable, Delivery, Exchange, Message, Queue
from warren.sdk.extend import DEAD_ERROR, DEAD_REASON, decode

Content = TypeVar("Content", bound=Message)


@dataclass(frozen=True)
class DeadLettered:
    """Message that was dead-lettered during a test.

    :ivar queue: queue in which the message was dead-lettered.
    :ivar reason: the SDK's reason (`failed`, `rejected`, `undecodable`, `unknown_type`, `expired`) or the broker's
        (`expired`, `maxlen`, `delivery_limit`, `rejected`).
    :ivar error: type and text of the handler's error; None if the broker dead-lettered the message.
    :ivar message_type: the message's name on the wire, or None.
    :ivar delivery: the dead letter with all its headers.
    """

    queue: str
    reason: str
    error: str | None
    message_type: str | None
    body: bytes
    delivery: Delivery = field(repr=False, compare=False)

    @classmethod
    def of(cls, delivery: Delivery) -> DeadLettered:
        """Return the description of a dead letter that was delivered, read from its headers."""
        headers = delivery.readable_headers
        own = headers.get(DEAD_REASON)
        error = headers.get(DEAD_ERROR)
        return cls(
            queue=delivery.routing_key,
            reason=str(headers.get("x-first-death-reason", "") if own is None else own),
            error=None if error is None else str(error),
            message_type=delivery.type,
            body=delivery.body,
            delivery=delivery,
        )

    def read(self, kind: type[Content]) -> Content:
        """Decode the body as a message of the class `kind`.

        :raises ValueError: if it is not a message of this class.
        """
        message: Content = decode(kind, self.delivery)
        return message


class DeadLetters:
    """Collector of the dead letters of all queues that the Apps declare with the SDK's dead letter exchange.

    Its own queue is bound to that exchange with the dead letter routing key of each such queue.

    :ivar received: the dead letters in the order of arrival.
    """

    def __init__(self) -> None:
        self.received: list[DeadLettered] = []
        self._queue = Queue(f"warren.testing.dead.{uuid4().hex}", type="classic", dead_letter_exchange=None)
        self._keys: set[str] = set()

    def consume_with(self, app: App) -> None:
        """Register the handler that collects the dead letters with this App, which must not be running yet."""

        @app.handle(bytes, queue=self._queue, concurrency=1)
        async def collect(body: bytes, delivery: Delivery) -> None:
            self.received.append(DeadLettered.of(delivery))

    async def follow(self, app: App, topology: Iterable[Declarable]) -> None:
        """Bind the collector's queue with the dead letter routing keys of those queues in `topology` whose dead letters
        it does not collect yet.

        :param app: App that declares the bindings.
        """
        new = [key for key in _keys(topology) if key not in self._keys]
        if new:
            exchange = Exchange(DEAD_LETTER_EXCHANGE, type="direct")
            bindings = (Binding(exchange.name, self._queue.name, key) for key in new)
            await app.declare_now(exchange, self._queue, *bindings)
            self._keys.update(new)


def _keys(topology: Iterable[Declarable]) -> Iterator[str]:
    """Yield the dead letter routing key of each queue in `topology` that uses the SDK's dead letter exchange."""
    for item in topology:
        if (
            isinstance(item, Queue)
            and item.dead_letter_exchange == DEAD_LETTER_EXCHANGE
            and item.dead_letter_key
        ):
            yield item.dead_letter_key
