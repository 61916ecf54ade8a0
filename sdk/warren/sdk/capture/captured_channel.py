"""Event capture on an AMQP channel: a `DataChannel` that records each publish, confirm, delivery and settlement."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from warren.core import capture_events as e
from warren.core.capture_events import event_prefix
from warren.sdk.capture.recorder import Recorder
from warren.sdk.consume.delivery import ATTEMPT, CAUSE, REPUBLISHED
from warren.sdk.transport.aio_pika_connection import AmqpChannel
from warren.sdk.transport.data_channel import Content, DataChannel
from warren.sdk.transport.socket_stream import FrameWriter
from warren.wire import field_tables
from warren.wire.amqp_url import connection_name
from warren.wire.content import message_id
from warren.wire.delivery_scanner import (
    GET_OK,
    RETURN,
    DeliveryScanner,
    StreamError,
    decode_content_header,
    decode_deliver,
    decode_return,
)
from warren.wire.methods import DELIVER

ADDRESSES = 1000
"""Largest number of combinations of consumer, exchange and routing key for which the JSON
prefixes of delivery events (`DeliveryEvents`) are cached."""
CHANNEL_CLOSED = "channel closed"

_u64 = struct.Struct(">Q").unpack_from
_attempt, _republished = field_tables.name_bytes(ATTEMPT), field_tables.name_bytes(REPUBLISHED)
_cause = field_tables.name_bytes(CAUSE)


class DeliveryEvents(NamedTuple):
    """JSON prefixes of the life-cycle events of a delivery: one for each event that it can have.

    Time, message id and size are appended to a prefix when the event is written. So all deliveries to one consumer with
    the same exchange and routing key share these prefixes.
    """

    delivered: str
    acked: str
    rejected: str
    requeued: str
    requeued_by_broker: str
    """JSON prefix of the event for a delivery that the broker requeued because the channel ended."""


class CapturedChannel(DataChannel):
    """Data channel that records a life-cycle event for each publish, confirm, return, delivery and settlement.

    A publish or settlement is recorded when it is passed to the socket, a delivery or confirm when it is read.
    """

    def __init__(
        self,
        recorder: Recorder,
        channel: AmqpChannel,
        frame_writer: FrameWriter,
        scanner: DeliveryScanner,
        frame_max: int,
        expects_confirms: bool,
    ) -> None:
        super().__init__(channel, frame_writer, scanner, frame_max, expects_confirms)
        self._record = recorder.add
        self._connection = connection_name(
            frame_writer.transport.get_extra_info("sockname"),
            frame_writer.transport.get_extra_info("peername"),
        )
        self._sequence = 0
        self._unconfirmed: dict[int, tuple[str, str]] = {}
        """Exchange and message id of unconfirmed or uncommitted publishes, by their sequence number."""
        self._queue = ""
        self._no_ack = False
        self._stream: bool | None = None
        self._consumers: dict[str, Callable[..., str]] = {}
        """Functions that return the JSON prefix of an event of one consumer, by consumer tag."""
        self._held: dict[int, tuple[DeliveryEvents, str]] = {}
        """JSON prefixes of the events, and message id, of each unsettled delivery, by delivery tag."""
        self._settling: list[tuple[DeliveryEvents, str]] = []
        """JSON prefixes of the events, and message id, of each delivery that
        the commit of the transaction acknowledges."""
        self._event_cache: dict[bytes, DeliveryEvents] = {}
        self.ended.add_done_callback(self._record_channel_end)

    # Publishes

    def publish(self, content: Content, mandatory: bool) -> None:
        super().publish(content, mandatory)
        exchange, identity = content.exchange, content.message_id
        header = content.header()
        again = True if _republished in header else None
        # Positional arguments: keywords take twice the time.
        kind = event_prefix(e.PUBLISHED, exchange, content.routing_key, None, again, None, self._connection)
        if _cause in header and (cause := _string_header(header, CAUSE)) is not None:
            # The rest of the event is unchanged.
            kind = f'{kind},"cause":{json.dumps(cause)}'
        self._record(kind, identity, len(content.body))
        self._sequence += 1
        if self.expects_confirms:
            self._unconfirmed[self._sequence] = exchange, identity

    def confirm(self, sequence: int, multiple: bool, ack: bool) -> None:
        first = next(iter(self._unconfirmed), sequence) if multiple else sequence
        # 0 with `multiple` covers all that is outstanding (AMQP 0-9-1, basic.ack).
        last = min(sequence or self._sequence, self._sequence)
        event = e.CONFIRMED if ack else e.NACKED
        for known in range(first, last + 1):
            found = self._unconfirmed.pop(known, None)
            if found is not None:
                self._record(
                    event_prefix(event, found[0], None, None, None, None, self._connection), found[1]
                )
        super().confirm(sequence, multiple, ack)

    def transaction_ended(self, *, committed: bool) -> None:
        settling, self._settling = self._settling, []
        published, self._unconfirmed = self._unconfirmed, {}
        if not committed:
            return
        for exchange, identity in published.values():
            self._record(event_prefix(e.CONFIRMED, exchange, connection=self._connection), identity)
        for events, identity in settling:
            self._record(events.acked, identity)

    # Deliveries

    async def consume(
        self,
        queue: str,
        *,
        prefetch: int | None = None,
        no_ack: bool = False,
        stream: bool = False,
        arguments: Mapping[str, Any] | None = None,
        timeout: float | None = None,
    ) -> str:
        self._queue, self._no_ack, self._stream = queue, no_ack, stream or None
        tag = await super().consume(
            queue, prefetch=prefetch, no_ack=no_ack, stream=stream, arguments=arguments, timeout=timeout
        )
        of_consumer = partial(
            event_prefix, connection=self._connection, queue=queue, consumer=tag, stream=self._stream
        )
        self._record(of_consumer(e.CONSUMING, prefetch=prefetch, no_ack=no_ack))
        self._consumers[tag] = of_consumer
        return tag

    async def cancel(self, tag: str, timeout: float | None = None) -> None:
        await super().cancel(tag, timeout)
        if (of_consumer := self._consumers.pop(tag, None)) is not None:
            self._record(of_consumer(e.CANCELLED))

    async def get(self, queue: str, timeout: float) -> tuple[bytes, bytes, bytes] | None:
        self._queue, self._no_ack, self._stream = queue, False, None
        return await super().get(queue, timeout)

    def message(self, method: bytes, header: bytes, body: bytes) -> None:
        # The receiver handles malformed frames, as without capture.
        with suppress(StreamError, IndexError, struct.error):
            self._record_incoming(method, header, body)
        super().message(method, header, body)

    def _record_incoming(self, method: bytes, header: bytes, body: bytes) -> None:
        """Record a message received from the broker: a delivery, the reply to `basic.get`, or a returned publish.

        :param method: payload of its method frame; `header` is that of its content header frame.
        """
        kind = method[3]
        if kind == DELIVER:
            # All but the delivery tag is the same for many deliveries.
            start = 5 + method[4]
            address = method[4:start] + method[start + 8 :]
            events = self._event_cache.get(address) or self._prepare(address, method, start)
            self._delivered(events, _u64(method, start)[0], header, len(body))
        elif kind == GET_OK:
            # basic.get-ok has the fields of basic.deliver, but for the consumer's tag.
            frame = method[:4] + b"\0" + method[4:]
            self._delivered(self._delivery_events(frame, None), _u64(method, 4)[0], header, len(body))
        elif kind == RETURN:
            self._returned(method, header)

    def acknowledge(self, delivery_tag: int) -> None:
        super().acknowledge(delivery_tag)
        if (held := self._held.pop(delivery_tag, None)) is not None:
            self._record(held[0].acked, held[1])

    def acknowledge_up_to(self, delivery_tag: int) -> None:
        super().acknowledge_up_to(delivery_tag)
        for tag in [tag for tag in self._held if tag <= delivery_tag]:
            self._settling.append(self._held.pop(tag))

    def reject(self, delivery_tag: int) -> None:
        super().reject(delivery_tag)
        if (held := self._held.pop(delivery_tag, None)) is not None:
            self._record(held[0].rejected, held[1])

    def requeue(self, delivery_tag: int, *, failed: bool) -> None:
        super().requeue(delivery_tag, failed=failed)
        if (held := self._held.pop(delivery_tag, None)) is not None:
            self._record(held[0].requeued, held[1])

    # Received frames

    def _prepare(self, address: bytes, method: bytes, start: int) -> DeliveryEvents:
        events = self._delivery_events(method, method[5:start].decode("utf-8", "surrogateescape"))
        if len(self._event_cache) < ADDRESSES:
            self._event_cache[address] = events
        return events

    def _delivery_events(self, method: bytes, consumer: str | None) -> DeliveryEvents:
        _, redelivered, exchange, key = decode_deliver(method)
        no_ack, again = self._no_ack or None, redelivered or None
        here = partial(
            event_prefix,
            connection=self._connection,
            queue=self._queue,
            consumer=consumer,
            stream=self._stream,
        )
        return DeliveryEvents(
            here(e.DELIVERED, exchange, key, redelivered=again, no_ack=no_ack),
            here(e.ACKED),
            here(e.REJECTED),
            here(e.REQUEUED),
            here(e.REQUEUED, reason=CHANNEL_CLOSED),
        )

    def _delivered(self, events: DeliveryEvents, tag: int, header: bytes, size: int) -> None:
        identity = _text(message_id(header))
        kind = events.delivered
        if _attempt in header and (attempt := _attempts(header)) is not None:
            # Rare; the rest of the event is unchanged.
            kind = f'{kind},"attempt":{attempt}'
        self._record(kind, identity, size)
        if not self._no_ack:
            self._held[tag] = events, identity

    def _returned(self, method: bytes, header: bytes) -> None:
        _, text, exchange, key = decode_return(method)
        kind = event_prefix(e.RETURNED, exchange, key, reason=text, connection=self._connection)
        self._record(kind, _text(message_id(header)))

    def _record_channel_end(self, ended: asyncio.Future[None]) -> None:
        """Record the end of the channel: a requeue of each unsettled delivery, and a cancellation of each consumer."""
        held, self._held = self._held, {}
        for events, identity in held.values():
            self._record(events.requeued_by_broker, identity)
        consumers, self._consumers = self._consumers, {}
        for of_consumer in consumers.values():
            self._record(of_consumer(e.CANCELLED, reason=CHANNEL_CLOSED))


def _text(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape")


def _attempts(header: bytes) -> int | None:
    """Return the value of the message header `warren-attempt`; None if it is missing or not an integer.

    :param header: payload of the message's content header frame.
    """
    value = _header_value(header, ATTEMPT)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _string_header(header: bytes, name: str) -> str | None:
    """Return the value of a message header; None if it is missing or not a string."""
    value = _header_value(header, name)
    return value if isinstance(value, str) else None


def _header_value(header: bytes, name: str) -> field_tables.Value | None:
    try:
        field = field_tables.decode_fields(decode_content_header(header).table).get(name)
    except (StreamError, field_tables.TableError):
        return None
    return None if field is None else field.value
