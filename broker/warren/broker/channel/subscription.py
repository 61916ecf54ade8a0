"""A consumer of this protocol: how a message is framed for it, and whether it has room."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Optional

from mypy_extensions import i64

from warren.broker.channel.delivery_headers import as_received
from warren.broker.model.message import Message
from warren.broker.model.queue.consumer import Consumer
from warren.broker.model.queue.queue import Queue
from warren.wire.content import content_frames
from warren.wire.methods import BASIC, DELIVER

if TYPE_CHECKING:
    from warren.broker.channel.ack_timeouts import AckDeadlines
    from warren.broker.channel.channel import Channel

_pack_head = struct.Struct(">BHIHH").pack
_pack_tag = struct.Struct(">QB").pack


class Subscription(Consumer):
    """What basic.consume made."""

    def __init__(
        self, channel: Channel, queue: Queue, tag: bytes, no_ack: bool, exclusive: bool, prefetch: i64
    ) -> None:
        super().__init__(queue, tag, no_ack, exclusive)
        self.channel = channel
        self.prefetch = prefetch
        self.origin = channel.origin
        self.deadlines: Optional[AckDeadlines] = None  # noqa: UP045
        """By when it has to acknowledge."""
        self.last_exchange: Optional[bytes] = None  # noqa: UP045
        self.last_key = b""
        self.before_tag = b""
        self.after_tag = b""
        self.framing: i64 = 0

    def has_room(self) -> bool:
        channel = self.channel
        if channel.connection.choked:
            return False
        if self.no_ack:
            return True
        if self.prefetch and self.unacked >= self.prefetch:
            return False
        return not (channel.prefetch and channel.outstanding >= channel.prefetch)

    def deliver(self, message: Message) -> bool:
        channel = self.channel
        connection = channel.connection
        tag: i64 = channel.last_tag + 1
        channel.last_tag = tag
        if message.exchange is not self.last_exchange or message.routing_key is not self.last_key:
            self.prepare(message)
        content = message.content
        if message.delivery_count or message.has_bcc:
            content = as_received(self.queue, message)
        if message.channel != channel.number or len(content) > connection.frame_max:
            content = content_frames(content, channel.number, connection.frame_max)
        out = connection.out
        out.append(self.before_tag)
        out.append(_pack_tag(tag, message.redelivered))
        out.append(self.after_tag)
        out.append(content)
        connection.wrote(self.framing + len(content))
        capture = self.queue.capture
        if capture is not None:
            identity = capture.delivered(self, message, self.origin, self.no_ack)
            if not self.no_ack:
                channel.identities[int(tag)] = identity
        if self.no_ack:
            return not connection.choked
        message.tag = tag
        message.consumer = self
        channel.unacked[int(tag)] = message
        if self.deadlines is not None:
            self.deadlines.delivered(int(tag))
        self.unacked += 1
        channel.outstanding += 1
        if channel.prefetch and channel.outstanding >= channel.prefetch:
            channel.limit_reached(self)
            return False
        if self.prefetch and self.unacked >= self.prefetch:
            return False
        return not connection.choked

    def prepare(self, message: Message) -> None:
        """The bytes of basic.deliver around the tag stay the same for one exchange and key."""
        exchange, key, tag = message.exchange, message.routing_key, self.tag
        self.last_exchange = exchange
        self.last_key = key
        size = 4 + 1 + len(tag) + 9 + 1 + len(exchange) + 1 + len(key)
        self.before_tag = b"".join(
            (_pack_head(1, self.channel.number, size, BASIC, DELIVER), bytes((len(tag),)), tag)
        )
        self.after_tag = b"".join((bytes((len(exchange),)), exchange, bytes((len(key),)), key, b"\xce"))
        self.framing = size + 8

    def unacknowledged(self) -> dict[int, Message]:
        return self.channel.unacked

    def cancel_from_server(self) -> None:
        self.channel.subscriptions.pop(self.tag, None)
        self.channel.connection.consumer_gone(self.channel.number, self.tag)
