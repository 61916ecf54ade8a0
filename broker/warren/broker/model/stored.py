"""A message's form in the log: a head with what routed it and when it dies, then its content."""

from __future__ import annotations

import struct

from warren.broker.model.message import Message
from warren.wire.content import body_size

_HEAD = struct.Struct(">BBBqBB")
_U16 = struct.Struct(">H")
VERSION = 1
DIED = 1
BLIND = 2


def message_head(message: Message) -> bytes:
    """Version, flags, priority, expiry in milliseconds since 1970 (0 is never), exchange and routing key."""
    flags = (DIED if message.died else 0) | (BLIND if message.blind else 0)
    return b"".join(
        (
            _HEAD.pack(
                VERSION,
                flags,
                message.priority,
                message.expires,
                len(message.exchange),
                len(message.routing_key),
            ),
            message.exchange,
            message.routing_key,
        )
    )


def read_message(sequence: int, payload: bytes, deliveries: int) -> Message:
    """The message that `message_head` and its content were written for."""
    _, flags, priority, expires, exchange_size, key_size = _HEAD.unpack_from(payload, 0)
    key = _HEAD.size + exchange_size
    content_start = key + key_size
    content = payload[content_start:]
    message = Message(
        payload[_HEAD.size : key],
        payload[key:content_start],
        content,
        body_size(content),
        _U16.unpack_from(content, 1)[0],
    )
    message.sequence = sequence
    message.expires = expires
    message.deliveries = deliveries
    message.priority = priority
    message.died = flags & DIED != 0
    message.blind = flags & BLIND != 0
    message.persistent = True
    message.stored = True
    return message
