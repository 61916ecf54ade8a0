"""Capture of life-cycle events: a hook with one method for each step in the life of a message or a consumer.

Such steps are publish, delivery and acknowledgement; docs/pipeline/events.md describes all. Queues and channels call
the hook. If capture is off, `Queue.capture` and `VirtualHost.capture` are None, which they check at each step.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from warren.broker.model.capture.consumer_events import CACHED_PREFIXES, ConsumerEvents
from warren.broker.model.capture.event_batcher import EventBatcher, decode_name
from warren.broker.model.clock import Clock
from warren.broker.model.message import Message
from warren.broker.model.queue.consumer import Consumer
from warren.core import capture_events as e
from warren.core.capture_events import event_prefix
from warren.wire import properties
from warren.wire.content import header_payload, message_id
from warren.wire.field_tables import TableError

if TYPE_CHECKING:
    from warren.broker.model.queue.queue import Queue

HEADER_PAYLOAD_AT: Final = 7
"""Offset in a message's content at which the payload of its header frame begins."""
BATCH_TYPE: Final = e.MESSAGE_TYPE.encode()
ENCODED_BATCH_TYPE: Final = b"\x0d" + BATCH_TYPE
"""The encoded property `type` of a message that holds a batch of events.

A message whose content header lacks these bytes holds no batch.
"""
UNCAPTURED: Final = chr(0xD800)
"""Value in place of a message id that marks a delivery of which no events are recorded.

It is a lone high surrogate, which no decoded message id is equal to.
"""


def is_event_batch(content: bytes) -> bool:
    """Return True if a message holds a batch of life-cycle events, which its property `type` shows.

    :param content: the encoded header frame and body frame, as in `Message.content`.
    """
    header = header_payload(content)
    if ENCODED_BATCH_TYPE not in header:
        return False
    try:
        return properties.decode(header).data("type") == BATCH_TYPE
    except TableError:
        return False


class LifeCycleHook(EventBatcher):
    """Capture hook of one virtual host: turns the steps in the life of its messages and consumers into events.

    The event stream itself has no hook. Messages that hold batches of events and are published by others (the SDK,
    another broker) make no events either: otherwise each delivery of a batch would be a new event, which is delivered
    in a batch again, and so on without end.
    """

    publishing_batch: bool = False
    """True while the message being published holds a batch of events, which is not captured."""

    def __init__(self, stream: bytes, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(stream, clock, loop)
        self.origin = ""
        """Name of the connection whose publish is in progress."""
        self.enqueued_prefixes: dict[tuple[bytes, bytes, bytes, str], str] = {}
        """Encoded beginnings of the events of publishes, by exchange, routing key, queue and connection."""
        self.basic_get_events: dict[tuple[bytes, str], ConsumerEvents] = {}
        """Encoded beginnings of the events of basic.get, by queue and connection."""
        self.streams_ending_in_batch: set[bytes] = set()
        """Streams whose newest message holds a batch of life-cycle events.

        Their consumers read events and make none.
        """

    # -- publishing

    def publish_started(self, origin: str, message: Message, unrouted_reason: str) -> None:
        """Begin to record the events of a publish. Calls of `enqueued` for its queues follow, then `publish_finished`.

        :param origin: the name of the publisher's connection.
        :param unrouted_reason: the reason why the message is in no queue; empty if it was routed to one.
        """
        self.origin = origin
        self.publishing_batch = is_event_batch(message.content)
        if unrouted_reason and not self.publishing_batch:
            self.not_enqueued(message, unrouted_reason)

    def enqueued(self, queue: Queue, message: Message) -> None:
        """Record that a queue accepts a message: a published one, a dead letter, or one whose delay has ended."""
        if self.publishing_batch and not message.dead_lettered:
            if queue.is_stream:
                self.streams_ending_in_batch.add(queue.name)
            return
        if self.streams_ending_in_batch:
            self.streams_ending_in_batch.discard(queue.name)
        origin = "" if message.dead_lettered else self.origin
        key = (message.exchange, message.routing_key, queue.name, origin)
        prefix = self.enqueued_prefixes.get(key)
        if prefix is None:
            if len(self.enqueued_prefixes) >= CACHED_PREFIXES:
                self.enqueued_prefixes.clear()
            prefix = self.enqueued_prefixes[key] = event_prefix(
                e.PUBLISHED,
                decode_name(message.exchange),
                decode_name(message.routing_key),
                decode_name(queue.name),
                connection=origin or None,
                stream=queue.is_stream or None,
            )
        self.add_event(prefix, decode_name(message_id(message.content, HEADER_PAYLOAD_AT)), message.body_size)

    def not_enqueued(self, message: Message, reason: str) -> None:
        """Record a publish that reaches no queue, or that a queue rejects.

        :param reason: `unroutable`, `no consumers`, `duplicate`, or `refused` if a queue rejects it.
        """
        prefix = event_prefix(
            e.PUBLISHED,
            decode_name(message.exchange),
            decode_name(message.routing_key),
            connection=self.origin,
            reason=reason,
        )
        self.add_event(prefix, decode_name(message_id(message.content, HEADER_PAYLOAD_AT)), message.body_size)

    def publish_finished(self, message: Message, rejected: bool) -> str | None:
        """Record the outcome of the publish that `publish_started` began.

        Return the message's id, for the later call of `confirmed`; None if the message holds a batch of events.

        :param rejected: True if a queue that the message was routed to rejected it.
        """
        if self.publishing_batch:
            self.publishing_batch = False
            return None
        if rejected:
            self.not_enqueued(message, "refused")
        self.origin = ""
        return decode_name(message_id(message.content, HEADER_PAYLOAD_AT))

    def returned(self, message: Message, origin: str, reason: bytes) -> None:
        """Record a basic.return to the publisher of a mandatory or immediate message.

        :param origin: the name of the publisher's connection.
        :param reason: the reply text of the basic.return.
        """
        prefix = event_prefix(
            e.RETURNED,
            decode_name(message.exchange),
            decode_name(message.routing_key),
            connection=origin,
            reason=decode_name(reason),
        )
        self.add_event(prefix, decode_name(message_id(message.content, HEADER_PAYLOAD_AT)), -1)

    def confirmed(self, exchange: bytes, identity: str, origin: str, ack: bool) -> None:
        """Record a publisher confirm.

        :param exchange: the exchange that the message was published to.
        :param identity: the message's id, as `publish_finished` returned it.
        :param origin: the name of the publisher's connection.
        :param ack: True for basic.ack, False for basic.nack.
        """
        prefix = event_prefix(e.CONFIRMED if ack else e.NACKED, decode_name(exchange), connection=origin)
        self.add_event(prefix, identity, -1)

    # -- delivery and settlement

    def delivered(self, consumer: Consumer, message: Message, origin: str, no_ack: bool) -> str:
        """Record a delivery to a consumer, or by basic.get.

        Return the message's id for the call that records the settlement, or `UNCAPTURED` for a batch of events in a
        stream, which makes no event. The caller keeps it until then, because the content of the message may leave
        memory meanwhile.

        :param origin: the name of the connection that the message was delivered to.
        :param no_ack: True if the delivery needs no acknowledgement.
        """
        if consumer.queue.is_stream and is_event_batch(message.content):
            return UNCAPTURED
        identity = decode_name(message_id(message.content, HEADER_PAYLOAD_AT))
        events = self.consumer_events(consumer, origin, no_ack)
        prefix = events.delivered(message.exchange, message.routing_key, message.redelivered)
        self.add_event(prefix, identity, message.body_size)
        return identity

    def acknowledged(self, consumer: Consumer, identity: str, origin: str) -> None:
        """Record the acknowledgement of a delivery.

        :param identity: the message's id, as `delivered` returned it.
        :param origin: the name of the connection that the message was delivered to.
        """
        if identity != UNCAPTURED:
            self.add_event(self.consumer_events(consumer, origin, False).acknowledged, identity, -1)

    def rejected(self, consumer: Consumer, identity: str, origin: str) -> None:
        """Record the rejection of a delivery without requeue (basic.reject or basic.nack).

        :param identity: the message's id, as `delivered` returned it.
        :param origin: the name of the connection that the message was delivered to.
        """
        if identity != UNCAPTURED:
            self.add_event(self.consumer_events(consumer, origin, False).rejected, identity, -1)

    def requeued(self, consumer: Consumer, identity: str, origin: str) -> None:
        """Record the requeue of a delivery by its client (basic.reject, basic.nack or basic.recover).

        :param identity: the message's id, as `delivered` returned it.
        :param origin: the name of the connection that the message was delivered to.
        """
        if identity != UNCAPTURED:
            self.add_event(self.consumer_events(consumer, origin, False).requeued, identity, -1)

    def requeued_by_close(self, consumer: Consumer, identity: str, origin: str) -> None:
        """Record the requeue of an unacknowledged delivery whose channel ended.

        :param identity: the message's id, as `delivered` returned it.
        :param origin: the name of the connection that the message was delivered to.
        """
        if identity != UNCAPTURED:
            self.add_event(self.consumer_events(consumer, origin, False).requeued_by_close, identity, -1)

    def consumer_events(self, consumer: Consumer, origin: str, no_ack: bool) -> ConsumerEvents:
        """Return the encoded parts that a consumer's events have in common: all but the message's id and size.

        They are made once for each consumer. Those of basic.get are cached by queue and connection, because all
        connections share a queue's `basic_get_consumer`.

        :param origin: the name of the consumer's connection.
        :param no_ack: True if deliveries to the consumer need no acknowledgement.
        """
        found = consumer.capture_events
        if found is not None:
            return found
        queue = consumer.queue
        if consumer is not queue.basic_get_consumer:
            found = consumer.capture_events = ConsumerEvents(queue, decode_name(consumer.tag), origin, no_ack)
            return found
        key = (queue.name, origin)
        found = None if no_ack else self.basic_get_events.get(key)
        if found is None:
            found = ConsumerEvents(queue, None, origin, no_ack)
            if len(self.basic_get_events) >= CACHED_PREFIXES:
                self.basic_get_events.clear()
            if not no_ack:
                self.basic_get_events[key] = found
        return found

    # -- consumers

    def consumer_started(self, consumer: Consumer) -> None:
        """Record the start of a consumer (basic.consume)."""
        if consumer.queue.name in self.streams_ending_in_batch:
            return
        prefix = event_prefix(
            e.CONSUMING,
            queue=decode_name(consumer.queue.name),
            connection=consumer.origin,
            consumer=decode_name(consumer.tag),
            prefetch=int(consumer.prefetch) or None,
            no_ack=consumer.no_ack,
            stream=consumer.queue.is_stream or None,
        )
        self.add_event(prefix, "", -1)

    def consumer_cancelled(self, consumer: Consumer) -> None:
        """Record the end of a consumer, by basic.cancel or for any other reason."""
        if consumer.queue.name in self.streams_ending_in_batch:
            return
        prefix = event_prefix(
            e.CANCELLED,
            queue=decode_name(consumer.queue.name),
            connection=consumer.origin,
            consumer=decode_name(consumer.tag),
            stream=consumer.queue.is_stream or None,
        )
        self.add_event(prefix, "", -1)

    # -- the end of messages

    def expired(self, queue: Queue, message: Message) -> None:
        """Record the expiry of a message, whose TTL has passed. A call of `dead_lettered` or `dropped` follows."""
        self._message_ended(e.EXPIRED, queue, message, None)

    def dead_lettered(self, queue: Queue, message: Message, reason: str) -> None:
        """Record that a message is moved to the queues to which its dead letter exchange routes it.

        :param reason: why the message leaves the queue: `rejected`, `expired`, `maxlen` or `delivery_limit`; `moved` if
            an operator moved or replayed it.
        """
        self._message_ended(e.DEAD_LETTERED, queue, message, reason)

    def dropped(self, queue: Queue, message: Message, reason: str) -> None:
        """Record the loss of a message: there is no dead letter exchange, or it routed the message nowhere.

        :param reason: why the message leaves the queue: `rejected`, `expired`, `maxlen` or `delivery_limit`; `deleted` if
            an operator deleted it.
        """
        self._message_ended(e.DROPPED, queue, message, reason)

    def purged(self, queue: Queue) -> None:
        """Record a queue.purge."""
        self._queue_emptied(queue, "purged")

    def queue_deleted(self, queue: Queue) -> None:
        """Record the deletion of a queue with its messages."""
        self._queue_emptied(queue, "deleted")

    def _message_ended(self, event: str, queue: Queue, message: Message, reason: str | None) -> None:
        prefix = event_prefix(
            event,
            decode_name(message.exchange),
            decode_name(message.routing_key),
            decode_name(queue.name),
            reason=reason,
        )
        self.add_event(prefix, decode_name(message_id(message.content, HEADER_PAYLOAD_AT)), -1)

    def _queue_emptied(self, queue: Queue, reason: str) -> None:
        if queue.name in self.streams_ending_in_batch:
            self.streams_ending_in_batch.discard(queue.name)
            return
        prefix = event_prefix(
            e.PURGED, queue=decode_name(queue.name), reason=reason, stream=queue.is_stream or None
        )
        self.add_event(prefix, "", -1)
