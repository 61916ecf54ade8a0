"""A message's form in the log: a head with what routed it and when it dies, then its content."""

from __future__ import annotations

import struct

from warren.broker.model.message import Message

_HEAD = struct.Struct(">BBBqBB")
_U16 = struct.Struct(">H")
_U64 = struct.Struct(">Q")
VERSION = 1
DEAD_LETTERED = 1
REASON_SHIFT = 32
HAS_BCC = 2


def message_head(message: Message) -> bytes:
    """Version, flags, priority, expiry in milliseconds since 1970 (0 is never), exchange and routing key."""
    flags = (DEAD_LETTERED if message.dead_lettered else 0) | (HAS_BCC if message.has_bcc else 0)
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


def message_mark(message: Message, reason: int = 0) -> int:
    """What the log keeps of a message besides its record: whether it was delivered, how often it came back, and the reason
    (counted from 1) for which it is kept aside. It only grows."""
    return reason << REASON_SHIFT | int(message.delivery_count) << 1 | message.redelivered


def pending_dead_letter_reason(mark: int) -> int:
    """The reason in a mark; 0 if the message is not kept aside."""
    return mark >> REASON_SHIFT


def fill_message(message: Message, payload: bytes) -> None:
    """Give a message what `message_head` and its content were written from, except for its priority and expiry."""
    _, flags, _, _, exchange_size, key_size = _HEAD.unpack_from(payload, 0)
    key = _HEAD.size + exchange_size
    start = key + key_size
    content = payload[start:]
    message.exchange = payload[_HEAD.size : key]
    message.routing_key = payload[key:start]
    message.content = content
    message.channel = _U16.unpack_from(content, 1)[0]
    message.dead_lettered = flags & DEAD_LETTERED != 0
    message.has_bcc = flags & HAS_BCC != 0


def apply_mark(message: Message, mark: int) -> None:
    """What a mark says of deliveries."""
    message.delivery_count = (mark & ((1 << REASON_SHIFT) - 1)) >> 1
    if mark & 1:
        message.redelivered = True


def describe_payload(payload: bytes) -> tuple[int, int, int]:
    """Priority, expiry and size of the body of a payload."""
    _, _, priority, expires, exchange_size, key_size = _HEAD.unpack_from(payload, 0)
    # The body's size stands in the content header, behind its frame's header, class and weight.
    return priority, expires, _U64.unpack_from(payload, _HEAD.size + exchange_size + key_size + 11)[0]


def read_message(sequence: int, payload: bytes, mark: int) -> Message:
    """The message that `message_head`, its content and `message_mark` were written for."""
    priority, expires, body = describe_payload(payload)
    message = Message(b"", b"", b"", body, 0)
    fill_message(message, payload)
    message.sequence = sequence
    message.priority = priority
    message.expires = expires
    apply_mark(message, mark)
    message.persistent = True
    message.stored = True
    return message
