"""A message's content header as the values of a row; what resembles the last one is not decoded again.

Publishers send the same properties again and again: on a stream two headers often differ in the offset alone, or in the
message id. So a header that equals the last one but for its offset gives the same row, and a header table that was met
before gives the same pairs.
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
"""The names of a header table, and their values as text."""

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
"""What a row holds. `headers` are `Pairs`, `headers_raw` the table's bytes, `timestamp` is in microseconds."""
MAX_CACHED_TABLES = 1024
"""Header tables that are remembered."""
MAX_SECONDS = (2**63 - 1) // 1_000_000
"""Seconds; a later time has no microseconds in 64 bits."""

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
    """Rows of the content headers of one queue or stream, in which the same header often follows itself.

    :param streamed: whether the header `x-stream-offset` is the stream's own; elsewhere it is one like any other
    """

    def __init__(self, streamed: bool) -> None:
        self._streamed = streamed
        self.flags = 0
        """Of all headers so far: what is not among them was never set."""
        self._row: Row = ()
        self._before = self._after = b""
        self._at = 0
        """Where in the last header its offset stood, and the bytes before and after it."""
        self._tables: dict[bytes, HeaderPairs] = {}

    def row(self, header: bytes) -> tuple[Row, int]:
        """The values of a content header's payload, and the offset that a stream has put into it (-1 if none has).

        :raises TableError: if it is malformed
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
                # A stream gives a table to a message that had none.
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
    """Where in a header table the stream's offset stands; -1 if it has none."""
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
    """A header table as Spark's map<string,string>: text as it is, everything else as JSON would write it.

    Times are ISO 8601 in UTC, bytes that are not UTF-8 are base64, a decimal keeps its digits, void is null.
    """
    names = tuple(name.encode("utf-8", "surrogateescape").decode("utf-8", "replace") for name in table)
    return names, tuple(value_as_text(value) for value in table.values())


def value_as_text(value: Value) -> str | None:
    if type(value) is int:
        # Most of what is not text; a Timestamp and a bool are of other types.
        return str(value)
    plain = as_json_value(value)
    return plain if plain is None or isinstance(plain, str) else _json(plain)


def as_json_value(value: Value) -> Any:
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
    try:
        return value.decode()
    except UnicodeDecodeError:
        return base64.b64encode(value).decode()
