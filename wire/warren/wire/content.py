"""Message content as encoded frames: one header frame and one body frame, concatenated in one bytes object.

A broker that forwards a message needs only the properties that decide its routing and durability. It parses these in place
and never encodes the content header again (AMQP 0-9-1, section 4.2.6).
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
PER_MESSAGE: Final = (
    HEADERS | CORRELATION_ID | REPLY_TO | EXPIRATION | MESSAGE_ID | TIMESTAMP | USER_ID | MORE_FLAGS
)
"""Flags of the properties that usually differ between messages of a publisher, or must be checked in each message.

Without them, a broker can reuse the parsed properties of the last message if the header is the same."""

FRAME_END: Final = b"\xce"
"""Last byte of a frame."""
HEADER_FIXED: Final = 14
"""Bytes of a content header before its properties: class, weight, body size, flags."""

BEFORE_HEADERS: Final = CONTENT_TYPE | CONTENT_ENCODING
"""Flags of the properties that are encoded before the headers."""
BEFORE_MESSAGE_ID: Final = PRIORITY | CORRELATION_ID | REPLY_TO | EXPIRATION
"""Flags of those rarely set properties that are encoded before the message id, to skip them with one test."""

_FRAME: Final = struct.Struct(">BHI")
_HEADER: Final = struct.Struct(">HHQH")
_U16: Final = struct.Struct(">H")
_U32: Final = struct.Struct(">I")
_U64: Final = struct.Struct(">Q")
_WIDTHS: Final = {ord(kind): width for kind, width in VALUE_WIDTHS.items()}


def u16(data: bytes, at: i64) -> i64:
    """Return the number in two bytes of `data`, from `at` on. Compiled, this takes a fortieth of a call of struct.

    :raises IndexError: if the data ends before
    """
    return data[at] << 8 | data[at + 1]


def u32(data: bytes, at: i64) -> i64:
    """Return the number in four bytes of `data`, from `at` on, as `u16` does.

    :raises IndexError: if the data ends before
    """
    return data[at] << 24 | data[at + 1] << 16 | data[at + 2] << 8 | data[at + 3]


class MalformedProperties(ValueError):
    """Error in a content header: properties shorter or longer than its flags announce, or malformed headers."""


class RoutingProperties:
    """Reusable parser of the message properties that decide routing and storage; `parse` overwrites all of them."""

    def __init__(self) -> None:
        self.delivery_mode: i64 = 0
        self.priority: i64 = 0
        self.headers = b""
        self.valid_headers = b""
        """Last header table that was validated; an equal one, which publishers often send, is not validated again."""
        self.reply_to = b""
        self.reply_to_offset: i64 = 0
        """Offset of the encoded property reply-to in bytes, counted from the first property."""
        self.expiration = b""
        self.user_id = b""
        self.has_expiration = False
        self.has_user_id = False

    def parse(self, data: bytes, start: i64, end: i64, flags: i64) -> None:
        """Parse the properties in `data[start:end]` that `flags` announces.

        Headers are validated, too. Malformed ones would otherwise cause an error only at a consumer, or when the
        message is dead-lettered. NaN and infinite numbers, which JSON cannot write, are refused; RabbitMQ closes the
        connection on them with an internal error.

        :raises MalformedProperties: if the properties are shorter or longer than the frame, or if the headers are not a
            valid field table, or have a number that is not finite
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
                size: i64 = u32(data, p)
                if p + 4 + size > end:
                    raise MalformedProperties("the header table reaches past its frame")
                headers = data[p + 4 : p + 4 + size]
                if headers != self.valid_headers:
                    walk_table(headers, 0, size, 0)
                    self.valid_headers = headers
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
                self.reply_to_offset = p - start
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
    """Validate that `data[start:end]` is a field table, without decoding its values.

    :param depth: number of tables and arrays around the table
    :raises MalformedProperties: if it is malformed, or has a number that is not finite
    :raises IndexError: or struct.error, if it ends early
    """
    p: i64 = start
    while p < end:
        p = walk_value(data, p + 1 + i64(data[p]), end, depth)


def walk_value(data: bytes, start: i64, end: i64, depth: i64) -> i64:
    """Validate the encoded field value at `data[start]`, and return the position of the first byte after it.

    :param end: end of the table or array that contains the value
    :param depth: number of tables and arrays around the value
    :raises MalformedProperties: if the value is malformed, or has a number that is not finite
    :raises IndexError: or struct.error, if it ends early
    """
    if start >= end:
        raise MalformedProperties("the header table is malformed")
    kind: i64 = data[start]
    p: i64 = start + 1
    if kind == 0x53 or kind == 0x78:  # S, x
        p += 4 + u32(data, p)
    elif kind == 0x46 or kind == 0x41:  # F, A
        inner: i64 = p + 4 + u32(data, p)
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
        if (kind == 0x64 or kind == 0x66) and not _finite(data, p, kind):  # d, f
            raise MalformedProperties("a header with a number that is not finite")
        p += width
    if p > end:
        raise MalformedProperties("the header table is malformed")
    return p


def _finite(data: bytes, start: i64, kind: i64) -> bool:
    """Return False if all bits of the exponent of the float at `data[start]` are set: NaN or an infinite number."""
    least: i64 = 0xF0 if kind == 0x64 else 0x80
    return data[start] & 0x7F != 0x7F or data[start + 1] < least


def skip_strings(data: bytes, start: i64, flags: i64, first: i64, second: i64) -> i64:
    """Return the position after two neighbouring properties that are short strings, each of which may not be set.

    :param start: position of the first of them in `data`
    :param flags: flags of the properties that are set
    :param first: flag of the first one
    :param second: flag of the second one
    """
    p: i64 = start
    # Annotated instead of converted: without mypyc, a call of i64 takes as long as many other lines.
    size: i64
    if flags & first:
        size = data[p]
        p += 1 + size
    if flags & second:
        size = data[p]
        p += 1 + size
    return p


def message_id(header: bytes, start: i64 = 0) -> bytes:
    """Return the property `message-id` of a content header; empty if it is not set, or if the header ends before it.

    :param start: position of the header frame's payload in `header`
    """
    try:
        flags: i64 = _U16.unpack_from(header, start + 12)[0]
        if not flags & MESSAGE_ID:
            return b""
        p: i64 = start + HEADER_FIXED
        # Annotated instead of converted: without mypyc, a call of i64 takes as long as the rest of the function.
        size: i64
        if flags & BEFORE_HEADERS:
            p = skip_strings(header, p, flags, CONTENT_TYPE, CONTENT_ENCODING)
        if flags & HEADERS:
            size = _U32.unpack_from(header, p)[0]
            p += 4 + size
        if flags & DELIVERY_MODE:
            p += 1
        if flags & BEFORE_MESSAGE_ID:
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


def join_content(channel: i64, header: bytes, body: bytes | bytearray) -> bytes:
    """Encode a content header's payload and a body as two frames of a channel; an empty body gets no frame."""
    head = _FRAME.pack(2, channel, len(header)) + header + b"\xce"
    if not body:
        return head
    return b"".join((head, _FRAME.pack(3, channel, len(body)), body, b"\xce"))


def content_beginning(channel: i64, header: bytes, size: i64) -> bytes:
    """Return the beginning of the encoded content that `join_content` returns, up to its body.

    :param header: the payload of the header frame.
    :param size: bytes of the body, more than 0. The body follows, and the end of its frame (`FRAME_END`).
    """
    return b"".join((_FRAME.pack(2, channel, len(header)), header, FRAME_END, _FRAME.pack(3, channel, size)))


def header_payload(content: bytes) -> bytes:
    """Return the payload of the header frame in `content`, a message's encoded frames."""
    size: i64 = _U32.unpack_from(content, 3)[0]
    return content[7 : 7 + size]


def _headers_at(content: bytes) -> i64:
    """Return the position of the header table's length in `content`; -1 if the message has no headers."""
    flags: i64 = (i64(content[19]) << 8) | i64(content[20])
    if not flags & HEADERS:
        return -1
    at: i64 = 21
    if flags & CONTENT_TYPE:
        at += 1 + i64(content[at])
    if flags & CONTENT_ENCODING:
        at += 1 + i64(content[at])
    return at


def header_table(content: bytes) -> bytes:
    """Return the encoded header table in `content`, a message's encoded frames, without its length; empty without one."""
    at = _headers_at(content)
    if at < 0:
        return b""
    size: i64 = _U32.unpack_from(content, at)[0]
    return content[at + 4 : at + 4 + size]


def replace_header_table(content: bytes, table: bytes) -> bytes:
    """Return a message's encoded frames with another header table.

    :param content: frames of a message that has a header table.
    :param table: the encoded table, without its length.
    """
    at = _headers_at(content)
    frame: i64 = _U32.unpack_from(content, 3)[0]
    before: i64 = _U32.unpack_from(content, at)[0]
    size: i64 = len(table)
    return b"".join(
        (
            content[:3],
            _U32.pack(frame + size - before),
            content[7:at],
            _U32.pack(size),
            table,
            content[at + 4 + before :],
        )
    )


def body_payload(content: bytes) -> bytes:
    """Return the whole body in `content`, a message's encoded frames."""
    size: i64 = _U32.unpack_from(content, 3)[0]
    if len(content) == size + 8:
        # There is no body frame. In compiled code a slice that ends before it starts is an error.
        return b""
    return content[15 + size : len(content) - 1]


def body_size(content: bytes) -> i64:
    """Return the size of a message's body in bytes, as the content header announces it.

    :param content: the message's encoded frames
    """
    size: i64 = _U64.unpack_from(content, 11)[0]
    return size


def content_frames(content: bytes, channel: i64, frame_max: i64) -> bytes:
    """Encode a message's content as frames of a channel, with as many body frames as `frame_max` (bytes) requires."""
    if len(content) <= frame_max:
        return join_content(channel, header_payload(content), body_payload(content))
    return b"".join(content_pieces(content, channel, frame_max))


def content_pieces(content: bytes, channel: i64, frame_max: i64) -> list[bytes | memoryview]:
    """Return the frames of `content_frames` in pieces: views of `content`, so that its body is not copied."""
    header = header_payload(content)
    room: i64 = frame_max - 8
    start: i64 = 15 + len(header)
    size: i64 = len(content) - 1 - start
    view = memoryview(content)
    pieces: list[bytes | memoryview] = [_FRAME.pack(2, channel, len(header)), header, FRAME_END]
    position: i64 = 0
    while position < size:
        length: i64 = min(room, size - position)
        pieces.append(_FRAME.pack(3, channel, length))
        pieces.append(view[start + position : start + position + length])
        pieces.append(FRAME_END)
        position += room
    return pieces


def make_header(body_length: i64, properties: bytes, flags: i64) -> bytes:
    """Encode a content header of class basic from encoded properties and their flags."""
    return _HEADER.pack(60, 0, body_length, flags) + properties
