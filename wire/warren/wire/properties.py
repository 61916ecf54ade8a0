"""The fourteen properties of class basic, decoded and encoded: for those who have to read or change them."""

from __future__ import annotations

import struct
from typing import TypeAlias

from warren.wire import tables

Property: TypeAlias = "bytes | int | dict[str, tables.Field]"

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
_FLAGS = {name: flag for flag, name, _ in _ORDER}
_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")
_U64 = struct.Struct(">Q")


class Properties(dict[str, Property]):
    """A message's properties by name; absent ones are absent.

    Strings are bytes, `timestamp` is seconds, `headers` keeps each field's type and bytes.
    """

    @property
    def headers(self) -> dict[str, tables.Field]:
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
            raise tables.TableError("more than one word of property flags")
        for flag, name, kind in _ORDER:
            if not flags & flag:
                continue
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
                properties[name] = tables.decode_fields(header[position : position + length], opaque)
                position += length
    except (IndexError, struct.error):
        raise tables.TableError("the properties end early") from None
    if position != len(header):
        raise tables.TableError("the properties do not fill their frame")
    return properties


def encode(properties: Properties, body_size: int) -> bytes:
    """A content header's payload with these properties."""
    flags = sum(_FLAGS[name] for name in properties)
    parts = [struct.pack(">HHQH", 60, 0, body_size, flags)]
    for _, name, kind in _ORDER:
        if name not in properties:
            continue
        value = properties[name]
        if kind == "short":
            assert isinstance(value, bytes)
            parts.append(bytes((len(value),)) + value)
        elif kind == "octet":
            assert isinstance(value, int)
            parts.append(bytes((value,)))
        elif kind == "u64":
            assert isinstance(value, int)
            parts.append(_U64.pack(value))
        else:
            assert isinstance(value, dict)
            table = tables.join(value)
            parts.append(_U32.pack(len(table)) + table)
    return b"".join(parts)
