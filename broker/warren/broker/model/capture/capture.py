"""Event capture: what happens to the messages of one virtual host, as numbered events in batches.

What each event means stands in docs/pipeline/events.md. Without capture there is no such object, and whoever would tell it
something finds None.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Optional

from mypy_extensions import i64

from warren.broker.model.clock import Clock
from warren.broker.model.message import Message
from warren.broker.model.queue.consumer import Consumer
from warren.core import capture_events as e
from warren.core.capture_events import Event, EventBatch, event_prefix
from warren.wire import properties
from warren.wire.content import header_payload, message_id
from warren.wire.field_tables import TableError

if TYPE_CHECKING:
    from warren.broker.model.queue.queue import Queue

APPLICATION: Final = "warren broker"
BATCH: Final = 500
"""So many events make a message."""
WITHIN: Final = 0.1
"""Seconds after its first event that end a batch, too."""
KINDS: Final = 1000
"""So many addresses are kept prepared, of what comes in and of each consumer; routing keys may be without number."""
CONTENT: Final = 7
"""Where in a content the payload of its header frame begins."""
CHANNEL_CLOSED: Final = "channel closed"
TYPE: Final = e.MESSAGE_TYPE.encode()
BATCHES: Final = b"\x0d" + TYPE
"""What the header of a batch of events has, whoever captured them; another's may have it in another place."""
QUIET: Final = chr(0xD800)
"""Instead of the id of a message that nothing is told of. No id is decoded to that."""


def is_event_batch(content: bytes) -> bool:
    """Whether a message is a batch of events: it says so in its property `type`."""
    header = header_payload(content)
    if BATCHES not in header:
        return False
    try:
        return properties.decode(header).data("type") == TYPE
    except TableError:
        return False


def text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


class ConsumerEvents:
    """The events of one consumer, or of one connection's basic.get from one queue, prepared."""

    def __init__(self, queue: Queue, consumer: str | None, origin: str, no_ack: bool) -> None:
        self.queue = text(queue.name)
        self.stream: bool | None = queue.is_stream or None
        self.consumer = consumer
        self.origin = origin
        self.no_ack: bool | None = no_ack or None
        self.acknowledged = self.make_kind(e.ACKED, None)
        self.rejected = self.make_kind(e.REJECTED, None)
        self.requeued = self.make_kind(e.REQUEUED, None)
        self.closed = self.make_kind(e.REQUEUED, CHANNEL_CLOSED)
        self.deliveries: dict[tuple[bytes, bytes], str] = {}
        """Deliveries by exchange and routing key."""
        self.redeliveries: dict[tuple[bytes, bytes], str] = {}

    def make_kind(self, event: str, reason: str | None) -> str:
        return event_prefix(
            event,
            queue=self.queue,
            connection=self.origin,
            reason=reason,
            consumer=self.consumer,
            stream=self.stream,
        )

    def delivery_kind(self, exchange: bytes, routing_key: bytes, redelivered: bool) -> str:
        known = self.redeliveries if redelivered else self.deliveries
        key = (exchange, routing_key)
        found = known.get(key)
        if found is None:
            if len(known) >= KINDS:
                known.clear()
            found = known[key] = event_prefix(
                e.DELIVERED,
                text(exchange),
                text(routing_key),
                self.queue,
                redelivered or None,
                connection=self.origin,
                consumer=self.consumer,
                no_ack=self.no_ack,
                stream=self.stream,
            )
        return found


class Capture:
    """The events of one virtual host: one source, numbered from 1. What cannot be written is dropped; its numbers are spent.

    :param stream: where they go; nothing that happens to that queue is an event.
    """

    publishing_batch: bool = False
    """What is published now is a batch of events."""

    def __init__(self, stream: bytes, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        self.stream = stream
        self.source = f"broker.{os.getpid()}.{secrets.token_hex(4)}"
        self.clock = clock
        self.loop = loop
        self.write: Optional[Callable[[EventBatch], bool]] = None  # noqa: UP045
        """Puts a batch into the stream; False if that cannot be now."""
        self.events: list[Event] = []
        self.next_sequence = 1
        self.dropped = 0
        self.timer: Optional[asyncio.TimerHandle] = None  # noqa: UP045
        self.origin = ""
        """The connection that publishes now."""
        self.published_kinds: dict[tuple[bytes, bytes, bytes, str], str] = {}
        self.basic_get_events: dict[tuple[bytes, str], ConsumerEvents] = {}
        self.streams_ending_in_batch: set[bytes] = set()
        """Streams whose newest message is a batch of events: who reads them is no event. Another message ends that."""
        self.add_event(event_prefix(e.STARTED), "", -1)

    def add_event(self, kind: str, identity: str, size: i64) -> None:
        """An event that happens now; see `warren.core.capture_events.Event`."""
        events = self.events
        events.append((kind, int(self.clock.now() * 1_000_000), identity, int(size)))
        if len(events) >= BATCH:
            self.end_batch()
        elif self.timer is None:
            self.timer = self.loop.call_later(WITHIN, self.end_batch)

    def end_batch(self) -> None:
        """End the batch that is being filled."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        events = self.events
        if not events:
            return
        self.events = []
        sequence = self.next_sequence
        self.next_sequence += len(events)
        batch = EventBatch(self.source, "broker", APPLICATION, sequence, events, text(self.stream))
        write = self.write
        if write is None or not write(batch):
            self.dropped += len(events)

    def close(self) -> None:
        """The broker stops: nothing happens after this."""
        self.add_event(event_prefix(e.STOPPED), "", -1)
        self.end_batch()
        self.abort()

    def abort(self) -> None:
        """Write no more."""
        self.write = None
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    # -- publishing

    def publish_started(self, origin: str, message: Message, untaken: str) -> None:
        """A connection publishes this; ends with `published`.

        :param untaken: why it gets into no queue.
        """
        self.origin = origin
        self.publishing_batch = is_event_batch(message.content)
        if untaken and not self.publishing_batch:
            self.publish_failed(message, untaken)

    def enqueued(self, queue: Queue, message: Message) -> None:
        """A queue has taken a message: a publish, or what was dead-lettered or held back before."""
        if self.publishing_batch and not message.dead_lettered:
            if queue.is_stream:
                self.streams_ending_in_batch.add(queue.name)
            return
        if self.streams_ending_in_batch:
            self.streams_ending_in_batch.discard(queue.name)
        origin = "" if message.dead_lettered else self.origin
        key = (message.exchange, message.routing_key, queue.name, origin)
        kind = self.published_kinds.get(key)
        if kind is None:
            if len(self.published_kinds) >= KINDS:
                self.published_kinds.clear()
            kind = self.published_kinds[key] = event_prefix(
                e.PUBLISHED,
                text(message.exchange),
                text(message.routing_key),
                text(queue.name),
                connection=origin or None,
                stream=queue.is_stream or None,
            )
        self.add_event(kind, text(message_id(message.content, CONTENT)), message.body_size)

    def publish_finished(self, message: Message, refused: bool) -> str | None:
        """What `publishing` began is done; the message's id for `confirmed`, None if it is not to be told.

        :param refused: by a queue that it was routed to.
        """
        if self.publishing_batch:
            self.publishing_batch = False
            return None
        if refused:
            self.publish_failed(message, "refused")
        self.origin = ""
        return text(message_id(message.content, CONTENT))

    def publish_failed(self, message: Message, reason: str) -> None:
        kind = event_prefix(
            e.PUBLISHED,
            text(message.exchange),
            text(message.routing_key),
            connection=self.origin,
            reason=reason,
        )
        self.add_event(kind, text(message_id(message.content, CONTENT)), message.body_size)

    def returned(self, message: Message, origin: str, reason: bytes) -> None:
        kind = event_prefix(
            e.RETURNED,
            text(message.exchange),
            text(message.routing_key),
            connection=origin,
            reason=text(reason),
        )
        self.add_event(kind, text(message_id(message.content, CONTENT)), -1)

    def confirmed(self, exchange: bytes, identity: str, origin: str, ack: bool) -> None:
        self.add_event(
            event_prefix(e.CONFIRMED if ack else e.NACKED, text(exchange), connection=origin), identity, -1
        )

    # -- delivering

    def consumer_events(self, consumer: Consumer, origin: str, no_ack: bool) -> ConsumerEvents:
        """The prepared events of a consumer. The getter of a queue stands for many connections."""
        found = consumer.capture_events
        if found is not None:
            return found
        queue = consumer.queue
        if consumer is not queue.basic_get_consumer:
            found = consumer.capture_events = ConsumerEvents(queue, text(consumer.tag), origin, no_ack)
            return found
        key = (queue.name, origin)
        found = None if no_ack else self.basic_get_events.get(key)
        if found is None:
            found = ConsumerEvents(queue, None, origin, no_ack)
            if len(self.basic_get_events) >= KINDS:
                self.basic_get_events.clear()
            if not no_ack:
                self.basic_get_events[key] = found
        return found

    def delivered(self, consumer: Consumer, message: Message, origin: str, no_ack: bool) -> str:
        """A message is on its way to a consumer; its id, for `settled`: its content may leave memory meanwhile."""
        if consumer.queue.is_stream and is_event_batch(message.content):
            # Else a reader of events made events.
            return QUIET
        identity = text(message_id(message.content, CONTENT))
        told = self.consumer_events(consumer, origin, no_ack)
        kind = told.delivery_kind(message.exchange, message.routing_key, message.redelivered)
        self.add_event(kind, identity, message.body_size)
        return identity

    def acknowledged(self, consumer: Consumer, identity: str, origin: str) -> None:
        if identity == QUIET:
            return
        self.add_event(self.consumer_events(consumer, origin, False).acknowledged, identity, -1)

    def given_back(self, consumer: Consumer, identity: str, origin: str, requeued: bool) -> None:
        if identity == QUIET:
            return
        told = self.consumer_events(consumer, origin, False)
        self.add_event(told.requeued if requeued else told.rejected, identity, -1)

    def requeued_by_close(self, consumer: Consumer, identity: str, origin: str) -> None:
        """Its channel ended before it was settled; it goes back to its queue."""
        if identity == QUIET:
            return
        self.add_event(self.consumer_events(consumer, origin, False).closed, identity, -1)

    def consumer_started(self, consumer: Consumer) -> None:
        if consumer.queue.name in self.streams_ending_in_batch:
            return
        kind = event_prefix(
            e.CONSUMING,
            queue=text(consumer.queue.name),
            connection=consumer.origin,
            consumer=text(consumer.tag),
            prefetch=int(consumer.prefetch) or None,
            no_ack=consumer.no_ack,
            stream=consumer.queue.is_stream or None,
        )
        self.add_event(kind, "", -1)

    def consumer_cancelled(self, consumer: Consumer) -> None:
        if consumer.queue.name in self.streams_ending_in_batch:
            return
        kind = event_prefix(
            e.CANCELLED,
            queue=text(consumer.queue.name),
            connection=consumer.origin,
            consumer=text(consumer.tag),
            stream=consumer.queue.is_stream or None,
        )
        self.add_event(kind, "", -1)

    # -- the end of messages

    def ended(self, event: str, queue: Queue, message: Message, reason: str | None) -> None:
        """It expired, was dead-lettered or dropped."""
        kind = event_prefix(
            event, text(message.exchange), text(message.routing_key), text(queue.name), reason=reason
        )
        self.add_event(kind, text(message_id(message.content, CONTENT)), -1)

    def purged(self, queue: Queue, reason: str) -> None:
        """All that was ready in a queue is gone."""
        if queue.name in self.streams_ending_in_batch:
            self.streams_ending_in_batch.discard(queue.name)
            return
        kind = event_prefix(e.PURGED, queue=text(queue.name), reason=reason, stream=queue.is_stream or None)
        self.add_event(kind, "", -1)
