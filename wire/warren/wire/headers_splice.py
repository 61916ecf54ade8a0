"""Replacement of the header table of a message's encoded content, without decoding its other properties."""

from __future__ import annotations

import struct
from itertools import chain
from typing import Final

from mypy_extensions import i64

from warren.wire.content import (
    BEFORE_HEADERS,
    CONTENT_ENCODING,
    CONTENT_TYPE,
    CORRELATION_ID,
    DELIVERY_MODE,
    EXPIRATION,
    HEADER_FIXED,
    HEADERS,
    PRIORITY,
    REPLY_TO,
    skip_strings,
)
from warren.wire.field_tables import VALUE_WIDTHS

FRAME_HEADER: Final = 7
"""Bytes before the payload of a frame: type, channel, size."""
FIRST_PROPERTY: Final = FRAME_HEADER + HEADER_FIXED
"""Position of the first property in a message's encoded content."""
BEFORE_EXPIRATION: Final = DELIVERY_MODE | PRIORITY | CORRELATION_ID | REPLY_TO
"""Flags of the properties between the header table and the expiration."""

_HEAD = struct.Struct(">BHIHH8sH")
"""Frame header of a content header, and its fixed fields: class, weight, body size, flags."""
_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")
_WIDTHS: Final = {ord(kind): width for kind, width in VALUE_WIDTHS.items()}


class HeadersSplice:
    """Reusable parser of a message's header table, delivery mode and expiration; `parse` overwrites them.

    `join` then returns the content with another header table and without the expiration. All other properties and the
    body keep their bytes.
    """

    def __init__(self) -> None:
        self.table = b""
        """Header table, encoded, without its length; empty if the message has none."""
        self.delivery_mode: i64 = 0
        """Property `delivery_mode`; 0 if it is not set."""
        self.expiration: bytes | None = None
        """Property `expiration`; None if it is not set."""
        self._content = b""
        self._flags: i64 = 0
        self._table_start: i64 = 0
        self._table_end: i64 = 0
        self._expiration_start: i64 = 0
        self._expiration_end: i64 = 0

    def parse(self, content: bytes) -> None:
        """Find the header table, delivery mode and expiration in a message's frames, which the broker has validated."""
        flags: i64 = _U16.unpack_from(content, FIRST_PROPERTY - 2)[0]
        p: i64 = FIRST_PROPERTY
        # Annotated instead of converted: without mypyc, a call of i64 takes as long as many other lines.
        size: i64
        if flags & BEFORE_HEADERS:
            p = skip_strings(content, p, flags, CONTENT_TYPE, CONTENT_ENCODING)
        self._content = content
        self._flags = flags
        self._table_start = p
        if flags & HEADERS:
            size = _U32.unpack_from(content, p)[0]
            self.table = content[p + 4 : p + 4 + size]
            p += 4 + size
        else:
            self.table = b""
        self._table_end = p
        self.delivery_mode = content[p] if flags & DELIVERY_MODE else 0
        if not flags & EXPIRATION:
            self.expiration = None
            return
        if flags & BEFORE_EXPIRATION:
            if flags & DELIVERY_MODE:
                p += 1
            if flags & PRIORITY:
                p += 1
            p = skip_strings(content, p, flags, CORRELATION_ID, REPLY_TO)
        size = content[p]
        self._expiration_start = p
        p += 1 + size
        self._expiration_end = p
        self.expiration = content[p - size : p]

    def join(self, channel: i64, table: bytes) -> bytes:
        """Return the parsed content with another header table and without an expiration.

        :param channel: the channel number of its frames.
        :param table: the encoded table with its length in front.
        """
        content = self._content
        self._content = b""
        size: i64 = _U32.unpack_from(content, 3)[0]
        flags: i64 = self._flags
        size += len(table) - (self._table_end - self._table_start)
        if not flags & EXPIRATION:
            head = _HEAD.pack(2, channel, size, 60, 0, content[11:19], flags | HEADERS)
            return b"".join(
                (head, content[FIRST_PROPERTY : self._table_start], table, content[self._table_end :])
            )
        size -= self._expiration_end - self._expiration_start
        head = _HEAD.pack(2, channel, size, 60, 0, content[11:19], (flags | HEADERS) & ~EXPIRATION)
        return b"".join(
            (
                head,
                content[FIRST_PROPERTY : self._table_start],
                table,
                content[self._table_end : self._expiration_start],
                content[self._expiration_end :],
            )
        )


def split_table(table: bytes) -> dict[bytes, bytes]:
    """Return the fields of a valid encoded table: for each name (with its length in front) the encoded value.

    If a name is in the table twice, it has the place of the first and the value of the last, as in a decoded table.

    :param table: the table without its length.
    """
    fields: dict[bytes, bytes] = {}
    p: i64 = 0
    end: i64 = len(table)
    size: i64
    while p < end:
        start: i64 = p
        size = table[p]
        p += 1 + size
        value: i64 = p
        width = _WIDTHS.get(table[p])
        if width is None:
            size = _U32.unpack_from(table, p + 1)[0]
            p += 5 + size
        else:
            size = width
            p += 1 + size
        fields[table[start:value]] = table[value:p]
    return fields


def join_table(fields: dict[bytes, bytes], added: bytes) -> bytes:
    """Return the encoded table with these fields, with its length in front.

    :param added: further encoded fields, which come last.
    """
    table = b"".join(chain.from_iterable(fields.items()))
    return _U32.pack(len(table) + len(added)) + table + added
