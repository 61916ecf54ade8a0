"""Consumer of a channel: prefetch limits, and basic.deliver frames."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, Optional

from mypy_extensions import i64

from warren.broker.model.delivery_headers import delivered_content
from warren.broker.model.message import Message, UnencodableMessage
from warren.broker.model.queue.consumer import Consumer
from warren.broker.model.queue.queue import Queue
from warren.broker.operations.firehose_traces import trace_delivery
from warren.wire.content import content_frames, content_pieces
from warren.wire.methods import BASIC, DELIVER, LONGEST_SHORT_STRING

if TYPE_CHECKING:
    from warren.broker.channel.ack_timeouts import AckDeadlines
    from warren.broker.channel.channel import Channel

LARGE_CONTENT: Final = 1024 * 1024
"""Bytes of encoded content from which on it is sent without being copied: a copy of 128 MiB takes a tenth of a second."""

METHODS_KEPT: Final = 128
"""Most routing keys of which a consumer keeps the encoded basic.deliver."""

_pack_head = struct.Struct(">BHIHH").pack
_pack_tag = struct.Struct(">QB").pack


class Subscription(Consumer):
    """Consumer that basic.consume has added to a channel.

    :param prefetch: most deliveries to this consumer that may be unacknowledged; 0 is no limit.
    """

    def __init__(
        self, channel: Channel, queue: Queue, tag: bytes, no_ack: bool, exclusive: bool, prefetch: i64
    ) -> None:
        super().__init__(queue, tag, no_ack, exclusive)
        self.channel = channel
        self.prefetch = prefetch
        self.origin = channel.origin
        self.was_suspended: bool = False
        """True if the client was sent basic.cancel because a delivery had timed out; its basic.cancel-ok ends it."""
        self.deadlines: Optional[AckDeadlines] = None  # noqa: UP045
        """Acknowledgement deadlines of deliveries to this consumer; None without a timeout."""
        self.shows_expiry = False
        """True if deliveries have a header with the time at which the message expires."""
        self.last_exchange: Optional[bytes] = None  # noqa: UP045
        self.last_key = b""
        # basic.deliver for that exchange and key: the frame before and after the delivery tag, and its size in bytes.
        self.before_tag = b""
        self.after_tag = b""
        self.method_size: i64 = 0
        self.methods: dict[bytes, tuple[bytes, bytes, i64]] = {}
        """Earlier values of these three for the same exchange, by routing key."""

    def has_room(self) -> bool:
        """Return whether another message may be delivered: prefetch limits permit it, and the client keeps reading."""
        channel = self.channel
        if channel.connection.deliveries_paused:
            return False
        if self.no_ack:
            return not (channel.outstanding >= channel.prefetch and channel.limits_automatic(self))
        if self.timed_out or self.quiesces or (self.prefetch and self.unacked >= self.prefetch):
            return False
        return not (channel.prefetch and channel.outstanding >= channel.prefetch)

    def deliver(self, message: Message) -> bool:
        """Send a message to the client, and return whether another one may be delivered.

        :raises UnencodableMessage: if it cannot be sent.
        """
        channel = self.channel
        connection = channel.connection
        content = message.content
        # What can fail comes first, before anything changes.
        try:
            if message.exchange is not self.last_exchange or message.routing_key is not self.last_key:
                self.encode_method(message)
            if message.acquired_count or message.has_bcc or self.shows_expiry:
                content = delivered_content(self.queue, message, self.shows_expiry)
                if message.redelivered:
                    self.redelivered += 1
        except (ValueError, struct.error) as error:
            raise UnencodableMessage(str(error)) from error
        tag: i64 = channel.last_tag + 1
        channel.last_tag = tag
        self.delivered += 1
        encoded_tag = _pack_tag(tag, message.redelivered)
        if len(content) < LARGE_CONTENT:
            if message.channel != channel.number or len(content) > connection.frame_max:
                content = content_frames(content, channel.number, connection.frame_max)
            connection.send_delivery(
                self.before_tag, encoded_tag, self.after_tag, content, self.method_size + len(content)
            )
        else:
            self.send_in_pieces(encoded_tag, content)
        capture = self.queue.capture
        if capture is not None:
            identity = capture.delivered(self, message, self.origin, self.no_ack)
            if not self.no_ack:
                channel.captured_ids[int(tag)] = identity
        if self.no_ack:
            return not connection.deliveries_paused
        message.tag = tag
        message.consumer = self
        channel.unacked[int(tag)] = message
        if self.deadlines is not None:
            self.deadlines.on_delivery(int(tag))
        self.unacked += 1
        channel.outstanding += 1
        if channel.prefetch and channel.outstanding >= channel.prefetch:
            channel.suspend_consumers(self)
            return False
        if self.prefetch and self.unacked >= self.prefetch:
            return False
        return not connection.deliveries_paused

    def send_in_pieces(self, tag: bytes, content: bytes) -> None:
        """Send a large message without copying its content.

        :param tag: encoded delivery tag and the bit `redelivered`.
        :param content: encoded header and body frames.
        """
        connection = self.channel.connection
        pieces: list[bytes | memoryview] = [self.before_tag, tag, self.after_tag]
        pieces += content_pieces(content, self.channel.number, connection.frame_max)
        size: i64 = 0
        for piece in pieces:
            size += len(piece)
        connection.send_large_delivery(pieces, size)

    def encode_method(self, message: Message) -> None:
        """Encode the parts of basic.deliver before and after the delivery tag.

        They are reused for further messages that have the same exchange and routing key.

        :raises ValueError: if the exchange or the routing key is longer than AMQP allows.
        """
        exchange, key, tag = message.exchange, message.routing_key, self.tag
        firehose = self.queue.vhost.firehose
        if exchange != self.last_exchange or firehose is not None:
            self.methods.clear()
        kept = self.methods.get(key)
        if kept is not None:
            self.last_exchange = exchange
            self.last_key = key
            self.before_tag, self.after_tag, self.method_size = kept
            return
        if len(exchange) > LONGEST_SHORT_STRING or len(key) > LONGEST_SHORT_STRING:
            raise ValueError(f"its exchange or routing key is longer than {LONGEST_SHORT_STRING} bytes")
        size = 4 + 1 + len(tag) + 9 + 1 + len(exchange) + 1 + len(key)
        before = b"".join((_pack_head(1, self.channel.number, size, BASIC, DELIVER), bytes((len(tag),)), tag))
        after = b"".join((bytes((len(exchange),)), exchange, bytes((len(key),)), key, b"\xce"))
        self.last_exchange = exchange
        self.last_key = key
        self.before_tag = before
        self.after_tag = after
        self.method_size = size + 8
        if len(self.methods) >= METHODS_KEPT:
            self.methods.clear()
        self.methods[key] = (self.before_tag, self.after_tag, self.method_size)
        if firehose is not None:
            # Nothing is reused, so that the next delivery is traced, too.
            self.last_exchange = None
            trace_delivery(firehose, self.channel.principal, self.queue, message)

    def unacknowledged(self) -> dict[int, Message]:
        """Return the channel's unacknowledged messages by their delivery tags."""
        return self.channel.unacked

    def cancel_from_server(self) -> None:
        """Remove the consumer, which the broker has cancelled, from its channel, and send basic.cancel."""
        self.channel.subscriptions.pop(self.tag, None)
        self.channel.count_ended(self)
        self.channel.connection.notify_consumer_cancelled(self.channel.number, self.tag)
