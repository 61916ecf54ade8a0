"""Message content as it travels: one header frame and one body frame, side by side in one bytes object.

A broker that forwards a message needs nothing of it but what routes it and what makes it durable, so the header's properties
are looked at in place and never rebuilt (AMQP 0-9-1, section 4.2.6).
"""

from __future__ import annotations

import struct
from typing import Final

from mypy_extensions import i64

from warren.wire.field_tables import MAX_DEPTH, VALUE_WIDTHS

CONTENT_TYPE: Final = 0x8000
CONTENT_ENCODING: Final = 0x4000
HEADERS: Final = 0x2000
DELIVERY_MODE: Final = 0x1000
PRIORITY: Final = 0x0800
CORRELATION_ID: Final = 0x0400
REPLY_TO: Final = 0x0200
EXPIRATION: Final = 0x0100
MESSAGE_ID: Final = 0x0080
TIMESTAMP: Final = 0x0040
TYPE: Final = 0x0020
USER_ID: Final = 0x0010
APP_ID: Final = 0x0008
CLUSTER_ID: Final = 0x0004
MORE_FLAGS: Final = 0x0001
SELDOM_ALIKE: Final = (
    HEADERS | CORRELATION_ID | REPLY_TO | EXPIRATION | MESSAGE_ID | TIMESTAMP | USER_ID | MORE_FLAGS
)
"""What two messages of one publisher seldom have in common, or what has to be looked at in each."""

HEADER_FIXED: Final = 14
"""Bytes of a header frame's payload before its properties: class, weight, body size, flags."""

BEFORE_ID: Final = PRIORITY | CORRELATION_ID | REPLY_TO | EXPIRATION
"""The rarer ones that stand before the message id."""

_FRAME: Final = struct.Struct(">BHI")
_HEADER: Final = struct.Struct(">HHQH")
_U16: Final = struct.Struct(">H")
_U32: Final = struct.Struct(">I")
_U64: Final = struct.Struct(">Q")
_WIDTHS: Final = {ord(kind): width for kind, width in VALUE_WIDTHS.items()}


class MalformedProperties(ValueError):
    """The property list of a content header ends before its flags say."""


class RoutingProperties:
    """The properties of a message that decide its routing and storage. One object is reused: `parse` fills it anew."""

    def __init__(self) -> None:
        self.delivery_mode: i64 = 0
        self.priority: i64 = 0
        self.headers = b""
        self.sound = b""
        """The last header table that was walked: a publisher often sends the same one again."""
        self.reply_to = b""
        self.reply_to_at: i64 = 0
        """How far behind the flags it stands."""
        self.expiration = b""
        self.user_id = b""
        self.has_expiration = False
        self.has_user_id = False

    def parse(self, data: bytes, start: i64, end: i64, flags: i64) -> None:
        """Walk the properties in `data[start:end]` that `flags` announces.

        :raises MalformedProperties: if they end early or go on longer than the frame says, or if the headers are no
            field table: who consumes the message, or dead-letters it, would have to find out.
        """
        self.delivery_mode = 0
        self.priority = 0
        self.has_expiration = False
        self.has_user_id = False
        if self.headers:
            self.headers = b""
        if self.reply_to:
            self.reply_to = b""
        if flags == DELIVERY_MODE and end == start + 1:
            self.delivery_mode = data[start]
            return
        p: i64 = start
        if flags & MORE_FLAGS:
            raise MalformedProperties("more than one word of property flags")
        try:
            if flags & CONTENT_TYPE:
                p += 1 + i64(data[p])
            if flags & CONTENT_ENCODING:
                p += 1 + i64(data[p])
            if flags & HEADERS:
                size: i64 = _U32.unpack_from(data, p)[0]
                if p + 4 + size > end:
                    raise MalformedProperties("the header table reaches past its frame")
                headers = data[p + 4 : p + 4 + size]
                if headers != self.sound:
                    walk_table(headers, 0, size, 0)
                    self.sound = headers
                self.headers = headers
                p += 4 + size
            if flags & DELIVERY_MODE:
                self.delivery_mode = data[p]
                p += 1
            if flags & PRIORITY:
                self.priority = data[p]
                p += 1
            if flags & CORRELATION_ID:
                p += 1 + i64(data[p])
            if flags & REPLY_TO:
                length: i64 = data[p]
                self.reply_to_at = p - start
                self.reply_to = data[p + 1 : p + 1 + length]
                p += 1 + length
            if flags & EXPIRATION:
                length = data[p]
                self.expiration = data[p + 1 : p + 1 + length]
                self.has_expiration = True
                p += 1 + length
            if flags & MESSAGE_ID:
                p += 1 + i64(data[p])
            if flags & TIMESTAMP:
                p += 8
            if flags & TYPE:
                p += 1 + i64(data[p])
            if flags & USER_ID:
                length = data[p]
                self.user_id = data[p + 1 : p + 1 + length]
                self.has_user_id = True
                p += 1 + length
            if flags & APP_ID:
                p += 1 + i64(data[p])
            if flags & CLUSTER_ID:
                p += 1 + i64(data[p])
        except (IndexError, struct.error):
            raise MalformedProperties("the properties end early") from None
        if p != end:
            raise MalformedProperties("the properties do not fill their frame")


def walk_table(data: bytes, start: i64, end: i64, depth: i64) -> None:
    """Make sure that `data[start:end]` is a field table, without making its values.

    :raises MalformedProperties: if it is none.
    :raises IndexError: or struct.error, if it ends early.
    """
    p: i64 = start
    while p < end:
        p = walk_value(data, p + 1 + i64(data[p]), end, depth)


def walk_value(data: bytes, start: i64, end: i64, depth: i64) -> i64:
    """The position after the value at `start`."""
    if start >= end:
        raise MalformedProperties("the header table is malformed")
    kind: i64 = data[start]
    p: i64 = start + 1
    if kind == 0x53 or kind == 0x78:  # S, x
        p += 4 + i64(_U32.unpack_from(data, p)[0])
    elif kind == 0x46 or kind == 0x41:  # F, A
        inner: i64 = p + 4 + i64(_U32.unpack_from(data, p)[0])
        if inner > end or depth >= MAX_DEPTH:
            raise MalformedProperties("the header table is malformed")
        p += 4
        if kind == 0x46:
            walk_table(data, p, inner, depth + 1)
        else:
            while p < inner:
                p = walk_value(data, p, inner, depth + 1)
        p = inner
    else:
        width = _WIDTHS.get(kind)
        if width is None:
            raise MalformedProperties("the header table is malformed")
        p += width
    if p > end:
        raise MalformedProperties("the header table is malformed")
    return p


def message_id(header: bytes, start: i64 = 0) -> bytes:
    """The property `message-id` in a header frame's payload; empty if it is not set, or if the payload ends before it.

    :param start: where the payload begins.
    """
    try:
        flags: i64 = _U16.unpack_from(header, start + 12)[0]
        if not flags & MESSAGE_ID:
            return b""
        p: i64 = start + HEADER_FIXED
        # Assigned and not converted: where this is not compiled, a call of i64 takes as long as all the rest.
        size: i64
        if flags & CONTENT_TYPE:
            size = header[p]
            p += 1 + size
        if flags & CONTENT_ENCODING:
            size = header[p]
            p += 1 + size
        if flags & HEADERS:
            size = _U32.unpack_from(header, p)[0]
            p += 4 + size
        if flags & DELIVERY_MODE:
            p += 1
        if flags & BEFORE_ID:
            if flags & PRIORITY:
                p += 1
            for flag in (CORRELATION_ID, REPLY_TO, EXPIRATION):
                if flags & flag:
                    size = header[p]
                    p += 1 + size
        size = header[p]
    except (IndexError, struct.error):
        return b""
    return header[p + 1 : p + 1 + size]


def join_content(channel: i64, header: bytes, body: bytes) -> bytes:
    """A header payload and a body as the two frames of `channel`; an empty body has no frame."""
    head = _FRAME.pack(2, channel, len(header)) + header + b"\xce"
    if not body:
        return head
    return b"".join((head, _FRAME.pack(3, channel, len(body)), body, b"\xce"))


def header_payload(content: bytes) -> bytes:
    """The payload of the content's header frame."""
    size: i64 = _U32.unpack_from(content, 3)[0]
    return content[7 : 7 + size]


def body_payload(content: bytes) -> bytes:
    """The whole body."""
    size: i64 = _U32.unpack_from(content, 3)[0]
    if len(content) == size + 8:
        # Only the header's frame. A slice that ends before it starts is an error in compiled code.
        return b""
    return content[15 + size : len(content) - 1]


def body_size(content: bytes) -> i64:
    size: i64 = _U64.unpack_from(content, 11)[0]
    return size


def content_frames(content: bytes, channel: i64, frame_max: i64) -> bytes:
    """The content as frames of another channel, its body in pieces that fit into `frame_max`."""
    header = header_payload(content)
    body = body_payload(content)
    room: i64 = frame_max - 8
    size: i64 = len(body)
    if size <= room:
        return join_content(channel, header, body)
    parts = [_FRAME.pack(2, channel, len(header)), header, b"\xce"]
    position: i64 = 0
    while position < size:
        piece = body[position : position + room]
        parts.append(_FRAME.pack(3, channel, len(piece)))
        parts.append(piece)
        parts.append(b"\xce")
        position += room
    return b"".join(parts)


def make_header(body_length: i64, properties: bytes, flags: i64) -> bytes:
    """A header payload of class basic from encoded properties and the flags that announce them."""
    return _HEADER.pack(60, 0, body_length, flags) + properties
