"""Encoding of messages in the broker's log: a head with exchange, routing key, priority and expiry; then the content.

Beside this record, the log keeps one number for each message, its mark. It holds the redelivered flag, the numbers of
requeues that count against a delivery limit and of those that do not, and for a dead letter that no target has accepted
yet, the reason.
"""

from __future__ import annotations

import struct

from mypy_extensions import i32

from warren.broker.model.message import Message

_HEAD = struct.Struct(">BBBqBB")
_U16 = struct.Struct(">H")
_U64 = struct.Struct(">Q")
VERSION = 1
DEAD_LETTERED = 1
REASON_SHIFT = 32
RETURNS_SHIFT = 40
MOST_RETURNS = (1 << 23) - 1
"""Largest number of returns that a mark holds, so that it stays a positive 64-bit number."""
HAS_BCC = 2


def message_head(message: Message) -> bytes:
    """Encode the head of a message's log record.

    It holds version, flags, priority, expiry in milliseconds since 1970 (0 is never), exchange and routing key.
    """
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
    """Return a message's mark: redelivered flag, numbers of requeues and dead-letter reason in one number.

    The log keeps the mark beside the record of the message. If it finds several marks of a message, the highest is the
    newest, since none of its parts ever falls.

    :param reason: for a dead letter that no target has accepted yet, the position of its reason in
        `death_history.REASONS`, counted from 1; otherwise 0.
    """
    returns = min(int(message.acquired_count) - int(message.delivery_count), MOST_RETURNS)
    counts = returns << RETURNS_SHIFT | int(message.delivery_count) << 1
    return counts | reason << REASON_SHIFT | message.redelivered


def pending_dead_letter_reason(mark: int) -> int:
    """Return the reason of a dead letter that no target has accepted yet; 0 if the message is no such dead letter.

    The reason is a position in `death_history.REASONS`, counted from 1.

    :param mark: the message's number in the log that holds the reason, the redelivered flag and the requeues.
    """
    return mark >> REASON_SHIFT & 0xFF


def fill_message(message: Message, payload: bytes) -> None:
    """Set a message's exchange, routing key, content and flags from its record in the log.

    Priority and expiry stay as they are, because a message that was paged out has kept them.

    :param payload: the payload of the message's record: head and content.
    """
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
    """Set a message's counts of requeues and redelivered flag from its mark, the number in the log that holds them."""
    counted = (mark & ((1 << REASON_SHIFT) - 1)) >> 1
    message.delivery_count = i32(counted)
    message.acquired_count = i32(counted + (mark >> RETURNS_SHIFT))
    if mark & 1:
        message.redelivered = True


def describe_payload(payload: bytes) -> tuple[int, int, int]:
    """Return priority, expiry in milliseconds since 1970 and body size of a message, from its record in the log.

    :param payload: the payload of the message's record: head and content.
    """
    _, _, priority, expires, exchange_size, key_size = _HEAD.unpack_from(payload, 0)
    # The body size is in the content header, after the frame header, class id and weight.
    return priority, expires, _U64.unpack_from(payload, _HEAD.size + exchange_size + key_size + 11)[0]


def routing_of(payload: bytes) -> tuple[bytes, bytes]:
    """Return exchange and routing key of a message, from its record in the log.

    :param payload: the payload of the message's record: head and content.
    """
    _, _, _, _, exchange_size, key_size = _HEAD.unpack_from(payload, 0)
    key = _HEAD.size + exchange_size
    return payload[_HEAD.size : key], payload[key : key + key_size]
