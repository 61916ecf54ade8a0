"""The fourteen properties of class basic, decoded and encoded: for those who have to read or change them."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import TypeAlias

from warren.wire import field_tables

Property: TypeAlias = "bytes | int | dict[str, field_tables.Field]"

_ORDER: tuple[tuple[int, str, str], ...] = (
    (0x8000, "content_type", "short"),
    (0x4000, "content_encoding", "short"),
    (0x2000, "headers", "table"),
    (0x1000, "delivery_mode", "octet"),
    (0x0800, "priority", "octet"),
    (0x0400, "correlation_id", "short"),
    (0x0200, "reply_to", "short"),
    (0x0100, "expiration", "short"),
    (0x0080, "message_id", "short"),
    (0x0040, "timestamp", "u64"),
    (0x0020, "type", "short"),
    (0x0010, "user_id", "short"),
    (0x0008, "app_id", "short"),
    (0x0004, "cluster_id", "short"),
)
_BY_NAME = {name: (flag, kind) for flag, name, kind in _ORDER}
_PRESENT: dict[int, tuple[tuple[str, str], ...]] = {}
_HEADER = struct.Struct(">HHQH")
_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")
_U64 = struct.Struct(">Q")


class Properties(dict[str, Property]):
    """A message's properties by name; absent ones are absent.

    Strings are bytes, `timestamp` is seconds, `headers` keeps each field's type and bytes.
    """

    @property
    def headers(self) -> dict[str, field_tables.Field]:
        value = self.get("headers", {})
        assert isinstance(value, dict)
        return value

    def data(self, name: str) -> bytes | None:
        value = self.get(name)
        assert value is None or isinstance(value, bytes)
        return value


def decode(header: bytes, opaque: str | None = None) -> Properties:
    """The properties in a content header's payload.

    :param opaque: the name of a header whose items, if it is an array, are not looked at.
    :raises tables.TableError: if they are malformed.
    """
    properties = Properties()
    position = 14
    try:
        (flags,) = _U16.unpack_from(header, 12)
        if flags & 1:
            raise field_tables.TableError("more than one word of property flags")
        for name, kind in present_properties(flags):
            if kind == "short":
                length = header[position]
                properties[name] = header[position + 1 : position + 1 + length]
                position += 1 + length
            elif kind == "octet":
                properties[name] = header[position]
                position += 1
            elif kind == "u64":
                (properties[name],) = _U64.unpack_from(header, position)
                position += 8
            else:
                (length,) = _U32.unpack_from(header, position)
                position += 4
                properties[name] = field_tables.decode_fields(header[position : position + length], opaque)
                position += length
    except (IndexError, struct.error):
        raise field_tables.TableError("the properties end early") from None
    if position != len(header):
        raise field_tables.TableError("the properties do not fill their frame")
    return properties


def encode(properties: Mapping[str, Property], body_size: int) -> bytes:
    """A content header's payload with these properties; `headers` may be a table that is encoded already.

    :raises ValueError: for a short string longer than 255 bytes, or a number that its field cannot hold.
    """
    flags, last = 0, 0x10000
    parts = [b""]
    for name, value in properties.items():
        flag, kind = _BY_NAME[name]
        if flag > last:
            return encode({name: properties[name] for name in _BY_NAME if name in properties}, body_size)
        last = flag
        flags |= flag
        if kind == "short":
            assert isinstance(value, bytes)
            parts.append(bytes((len(value),)) + value)
        elif kind == "table":
            table = value if isinstance(value, bytes) else _joined(value)
            parts.append(_U32.pack(len(table)) + table)
        else:
            assert isinstance(value, int)
            parts.append(bytes((value,)) if kind == "octet" else _U64.pack(value))
    parts[0] = _HEADER.pack(60, 0, body_size, flags)
    return b"".join(parts)


def _joined(headers: Property) -> bytes:
    assert isinstance(headers, dict)
    return field_tables.join(headers)


def present_properties(flags: int) -> tuple[tuple[str, str], ...]:
    """The names and kinds (`short`, `octet`, `u64`, `table`) of the properties that the flags announce, in order."""
    found = _PRESENT.get(flags)
    if found is None:
        found = tuple((name, kind) for flag, name, kind in _ORDER if flags & flag)
        if len(_PRESENT) < 256:
            _PRESENT[flags] = found
    return found
