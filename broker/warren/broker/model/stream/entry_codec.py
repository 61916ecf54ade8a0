"""Encoding of messages in a stream: exchange, routing key, and content.

The content already has the header x-stream-offset, so that it is delivered as it is stored.
"""

from __future__ import annotations

import struct
from typing import Final

from mypy_extensions import i64

from warren.broker.model.message import Message
from warren.wire.content import (
    CONTENT_ENCODING,
    CONTENT_TYPE,
    HEADERS,
    body_payload,
    header_payload,
    join_content,
)
from warren.wire.field_tables import field_of, long_field
from warren.wire.properties import decode, encode

NAME: Final = "x-stream-offset"
IDENTITY_HEADER: Final = "x-warren-stream-id"
"""Header with the identity of the stream, for consumers that ask for it."""
_FIELD: Final = b"\x0fx-stream-offset"
_FIELD_SIZE: Final = 25
_U32: Final = struct.Struct(">I")
_U16: Final = struct.Struct(">H")
_U64: Final = struct.Struct(">Q")
_FLAGS_AT: Final = 19
"""Position of the property flags in a message's content.

They follow the frame header of 7 bytes, class id, weight and body size.
"""
_PROPERTIES_AT: Final = 21


def entry_head(exchange: bytes, routing_key: bytes) -> bytes:
    """Encode the head of a stream entry: the lengths of both names, then the names. The message's content follows."""
    return b"".join((bytes((len(exchange), len(routing_key))), exchange, routing_key))


def with_offset(message: Message, offset: i64) -> bytes:
    """Return a message's content as consumers of the stream get it.

    It has x-stream-offset as its last header (a long, as in RabbitMQ), and no BCC.
    """
    content = message.content
    flags: i64 = (i64(content[_FLAGS_AT]) << 8) | i64(content[_FLAGS_AT + 1])
    at: i64 = _PROPERTIES_AT
    if flags & CONTENT_TYPE:
        at += 1 + i64(content[at])
    if flags & CONTENT_ENCODING:
        at += 1 + i64(content[at])
    size: i64 = _U32.unpack_from(content, 3)[0]
    if not flags & HEADERS:
        return b"".join(
            (
                content[:3],
                _U32.pack(size + 4 + _FIELD_SIZE),
                content[7:_FLAGS_AT],
                _U16.pack(flags | HEADERS),
                content[_PROPERTIES_AT:at],
                b"\x00\x00\x00\x19\x0fx-stream-offsetl",
                _U64.pack(offset),
                content[at:],
            )
        )
    table: i64 = _U32.unpack_from(content, at)[0]
    end: i64 = at + 4 + table
    if message.has_bcc or content.find(_FIELD, at, end) >= 0:
        return _rewritten(message, int(offset))
    return b"".join(
        (
            content[:3],
            _U32.pack(size + _FIELD_SIZE),
            content[7:at],
            _U32.pack(table + _FIELD_SIZE),
            content[at + 4 : end],
            b"\x0fx-stream-offsetl",
            _U64.pack(offset),
            content[end:],
        )
    )


def _rewritten(message: Message, offset: int) -> bytes:
    """Return a message's content with x-stream-offset and without BCC, by decoding and encoding all its headers.

    This is slow. `with_offset` uses it only for a message with BCC, or with an x-stream-offset from its publisher.
    """
    properties = decode(header_payload(message.content))
    headers = dict(properties.headers)
    if message.has_bcc:
        headers.pop("BCC", None)
    headers.pop(NAME, None)
    headers[NAME] = long_field(offset)
    properties["headers"] = headers
    body = body_payload(message.content)
    return join_content(message.channel, encode(properties, len(body)), body)


def with_identity(content: bytes, identity: str) -> bytes:
    """Return a message's content with the header x-warren-stream-id, which is before x-stream-offset, the last header.

    This is slow: all headers are decoded and encoded.

    :param content: the content as `with_offset` returns it.
    :param identity: the identity of the stream.
    """
    properties = decode(header_payload(content))
    headers = {IDENTITY_HEADER: field_of(identity), **properties.headers}
    # A message that was copied from another stream may have that one's.
    headers[IDENTITY_HEADER] = field_of(identity)
    properties["headers"] = headers
    body = body_payload(content)
    return join_content(_U16.unpack_from(content, 1)[0], encode(properties, len(body)), body)


__all__ = ["IDENTITY_HEADER", "entry_head", "with_identity", "with_offset"]
