"""Decoding of content headers into the values of a row, with caching of repeated headers.

Publishers send the same properties again and again: on a stream two consecutive headers often differ only in the
offset, or in the message id. A header that equals the previous one except for its offset therefore gives the same row,
and a header table that was decoded before gives the same pairs.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, TypeAlias

from warren.wire.content import MalformedProperties, walk_value
from warren.wire.field_tables import TableError, Timestamp, Value, decode
from warren.wire.properties import present_properties

OFFSET = "x-stream-offset"
Row: TypeAlias = "tuple[Any, ...]"
HeaderPairs: TypeAlias = "tuple[tuple[str, ...], tuple[str | None, ...]]"
"""Decoded header table of a message: the names of the headers, and their values as text."""

COLUMNS = (
    "content_type",
    "content_encoding",
    "headers",
    "headers_raw",
    "delivery_mode",
    "priority",
    "correlation_id",
    "reply_to",
    "expiration",
    "message_id",
    "timestamp",
    "type",
    "user_id",
    "app_id",
    "cluster_id",
)
"""Properties in the order of a decoded row. `headers` holds `HeaderPairs`, `headers_raw` the encoded table, and
`timestamp` microseconds since 1970."""
MAX_CACHED_TABLES = 1024
"""Number of decoded header tables that are cached."""
MAX_SECONDS = (2**63 - 1) // 1_000_000
"""Largest timestamp, in seconds since 1970, whose microseconds fit into 64 bits; a larger one is read as null."""

_json = json.JSONEncoder(ensure_ascii=False).encode
_FIELD = b"\x0fx-stream-offset"
_LONG = _FIELD + b"l"
_PLACES = {name: place for place, name in enumerate(COLUMNS)}
_HEADERS, _RAW = _PLACES["headers"], _PLACES["headers_raw"]
_PREFIX = len(_LONG)
_u16 = struct.Struct(">H").unpack_from
_u32 = struct.Struct(">I").unpack_from
_u64 = struct.Struct(">Q").unpack_from
_i64 = struct.Struct(">q").unpack_from


class HeaderDecoder:
    """Decoder for the content headers of the messages of one queue or stream.

    :param streamed: whether the messages come from a stream, which writes a message's offset into the header
        `x-stream-offset`; in messages of a queue that header has no special meaning
    """

    def __init__(self, streamed: bool) -> None:
        self._streamed = streamed
        self.flags = 0
        """Bitwise or of the AMQP property flags of all headers so far. A property whose flag is not set here was
        in none of them."""
        self._row: Row = ()
        self._before = self._after = b""
        self._at = 0
        """Byte position of the value of `x-stream-offset` in the header decoded last; 0 if that header had none.
        `_before` and `_after` hold the bytes before and after this value."""
        self._tables: dict[bytes, HeaderPairs] = {}

    def row(self, header: bytes) -> tuple[Row, int]:
        """Decode the payload of a content header.

        :return: the values of the properties in the order of `COLUMNS` (None for one that is not set), and the
            message's offset in its stream (-1 without one)
        :raises TableError: if the header is malformed
        """
        at = self._at
        try:
            if at and header[12:at] == self._before and header[at + 8 :] == self._after:
                return self._row, _i64(header, at)[0]
            if not at and header[12:] == self._before:
                return self._row, -1
            row, at = self._decode(header)
        except (IndexError, struct.error, MalformedProperties):
            raise TableError("the properties of a message are malformed") from None
        self._row, self._at = row, at
        if not at:
            self._before = header[12:]
            return row, -1
        self._before, self._after = header[12:at], header[at + 8 :]
        return row, _i64(header, at)[0]

    def _decode(self, header: bytes) -> tuple[Row, int]:
        flags: int = _u16(header, 12)[0]
        self.flags |= flags
        row: list[Any] = [None] * len(COLUMNS)
        position, offset_at = 14, 0
        for name, kind in present_properties(flags):
            if kind == "short":
                start = position + 1
                position = start + header[position]
                row[_PLACES[name]] = header[start:position].decode("utf-8", "replace")
            elif kind == "octet":
                row[_PLACES[name]] = header[position]
                position += 1
            elif kind == "u64":
                seconds = _u64(header, position)[0]
                row[_PLACES[name]] = seconds * 1_000_000 if seconds <= MAX_SECONDS else None
                position += 8
            else:
                start = position + 4
                position = start + _u32(header, position)[0]
                table = header[start:position]
                place = offset_place(table) if self._streamed else -1
                if place >= 0:
                    offset_at = start + place + _PREFIX
                    table = table[:place] + table[place + _PREFIX + 8 :]
                # A stream adds a table to a message that was published without one.
                if table or place < 0:
                    row[_HEADERS] = self._pairs(table)
                    row[_RAW] = table
        if position != len(header):
            raise TableError("the properties of a message do not fill their frame")
        return tuple(row), offset_at

    def _pairs(self, table: bytes) -> HeaderPairs:
        found = self._tables.get(table)
        if found is None:
            found = table_as_text(decode(table))
            if len(self._tables) >= MAX_CACHED_TABLES:
                self._tables.clear()
            self._tables[table] = found
        return found


def offset_place(table: bytes) -> int:
    """Return the byte position of the field `x-stream-offset` in a header table; -1 if it is not there."""
    if table.startswith(_LONG):
        return 0
    if _FIELD not in table:
        return -1
    position, end = 0, len(table)
    while position < end:
        if table.startswith(_LONG, position):
            return position
        position = walk_value(table, position + 1 + table[position], end, 0)
    return -1


def table_as_text(table: Mapping[str, Value]) -> HeaderPairs:
    """Convert a header table to a tuple of its names and a tuple of its values, for Spark's map<string,string>: text
    unchanged, everything else as JSON.

    Times are ISO 8601 in UTC, bytes that are not UTF-8 are base64, a decimal keeps its digits, void is null.
    """
    names = tuple(name.encode("utf-8", "surrogateescape").decode("utf-8", "replace") for name in table)
    return names, tuple(value_as_text(value) for value in table.values())


def value_as_text(value: Value) -> str | None:
    """Convert a header value to text: text unchanged, void to None, everything else to JSON."""
    if type(value) is int:
        # Fast path for the most frequent type besides text; a Timestamp and a bool are of other types.
        return str(value)
    plain = as_json_value(value)
    return plain if plain is None or isinstance(plain, str) else _json(plain)


def as_json_value(value: Value) -> Any:
    """Convert a header value to a value that JSON can represent."""
    match value:
        case Timestamp():
            try:
                return datetime.fromtimestamp(value, UTC).isoformat()
            except (ValueError, OverflowError, OSError):
                return int(value)
        case str():
            return value if value.isascii() else bytes_as_text(value.encode("utf-8", "surrogateescape"))
        case bytes():
            return bytes_as_text(value)
        case Decimal():
            return str(value)
        case dict():
            return {
                bytes_as_text(name.encode("utf-8", "surrogateescape")): as_json_value(inner)
                for name, inner in value.items()
            }
        case list():
            return [as_json_value(inner) for inner in value]
        case _:
            return value


def bytes_as_text(value: bytes) -> str:
    """Decode bytes as UTF-8, or return them in base64 if they are not UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return base64.b64encode(value).decode()
