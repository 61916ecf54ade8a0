"""Encoded beginnings ("prefixes") of the life-cycle events of one consumer.

The JSON object of an event begins with its prefix (kind, exchange, routing key, queue, connection and so on); the
message's id and size follow. The prefixes are cached, so that a delivery encodes nothing but the id and the size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from warren.broker.model.capture.event_batcher import decode_name
from warren.core import capture_events as e
from warren.core.capture_events import event_prefix

if TYPE_CHECKING:
    from warren.broker.model.queue.queue import Queue

CACHED_PREFIXES: Final = 1000
"""Event prefixes that each cache holds at most. A full cache is emptied, as the number of routing keys is unbounded."""
CHANNEL_CLOSED: Final = "channel closed"
"""Reason in the event of a message that is requeued because its channel ended."""


class ConsumerEvents:
    """Encoded beginnings of the events of one consumer, or of one connection that fetches from one queue by basic.get.

    An event is encoded as a JSON object.

    :param queue: the queue that the messages are delivered from.
    :param consumer: the consumer tag; None for basic.get.
    :param origin: the name of the connection.
    :param no_ack: True if the deliveries need no acknowledgement.
    """

    def __init__(self, queue: Queue, consumer: str | None, origin: str, no_ack: bool) -> None:
        self.queue = decode_name(queue.name)
        self.stream: bool | None = queue.is_stream or None
        self.consumer = consumer
        self.origin = origin
        self.no_ack: bool | None = no_ack or None
        self.acknowledged = self.prefix(e.ACKED, None)
        self.rejected = self.prefix(e.REJECTED, None)
        self.requeued = self.prefix(e.REQUEUED, None)
        self.requeued_by_close = self.prefix(e.REQUEUED, CHANNEL_CLOSED)
        self.deliveries: dict[tuple[bytes, bytes], str] = {}
        """Encoded beginnings of the events of first deliveries, by exchange and routing key."""
        self.redeliveries: dict[tuple[bytes, bytes], str] = {}
        """Encoded beginnings of the events of redeliveries, by exchange and routing key."""

    def prefix(self, event: str, reason: str | None) -> str:
        """Return the encoded beginning of an event of this consumer that is no delivery, such as an acknowledgement.

        :param event: the kind of the event, a constant of `capture_events`.
        :param reason: the reason that the event gives; None if it gives none.
        """
        return event_prefix(
            event,
            queue=self.queue,
            connection=self.origin,
            reason=reason,
            consumer=self.consumer,
            stream=self.stream,
        )

    def delivered(self, exchange: bytes, routing_key: bytes, redelivered: bool) -> str:
        """Return the encoded beginning of the event of a delivery to this consumer.

        :param exchange: the exchange that the message was published to.
        :param routing_key: the message's routing key.
        :param redelivered: True if the message may have been delivered before.
        """
        cache = self.redeliveries if redelivered else self.deliveries
        key = (exchange, routing_key)
        found = cache.get(key)
        if found is None:
            if len(cache) >= CACHED_PREFIXES:
                cache.clear()
            found = cache[key] = event_prefix(
                e.DELIVERED,
                decode_name(exchange),
                decode_name(routing_key),
                self.queue,
                redelivered or None,
                connection=self.origin,
                consumer=self.consumer,
                no_ack=self.no_ack,
                stream=self.stream,
            )
        return found
