"""Codec of content headers: the fourteen properties of class basic."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import TypeAlias

from warren.wire import field_tables
from warren.wire.methods import LONGEST_SHORT_STRING

Property: TypeAlias = "bytes | int | dict[str, field_tables.Field]"
"""Value of a property: a short string as bytes, a number, or the decoded `headers`."""

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
NAMES = tuple(name for _, name, _ in _ORDER)
"""Names of the properties, in the order in which they are encoded."""
_BY_NAME = {name: (flag, kind) for flag, name, kind in _ORDER}
_PRESENT: dict[int, tuple[tuple[str, str], ...]] = {}
_HEADER = struct.Struct(">HHQH")
_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")
_U64 = struct.Struct(">Q")


class Properties(dict[str, Property]):
    """Properties of a message by name; those that are not set have no key.

    Strings are bytes, `timestamp` is in seconds, `headers` keeps the type and the bytes of each field.
    """

    @property
    def headers(self) -> dict[str, field_tables.Field]:
        """The header table; empty if it is not set."""
        value = self.get("headers", {})
        assert isinstance(value, dict)
        return value

    def data(self, name: str) -> bytes | None:
        """Return the property `name`, which must be a string, such as `reply_to`; None if it is not set."""
        value = self.get(name)
        assert value is None or isinstance(value, bytes)
        return value


def decode(header: bytes, opaque: str | None = None) -> Properties:
    """Decode the payload of a content header frame.

    :param opaque: name of a header, such as "x-death", that stays encoded if it is an array: its value is None, the
        bytes are in its `raw`
    :raises field_tables.TableError: if the properties or the headers are malformed
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
    """Encode the payload of a content header frame. The property `headers` may also be an encoded table.

    :param body_size: size of the body in bytes
    :raises ValueError: for a short string longer than 255 bytes, or an octet that is out of range
    :raises struct.error: for a timestamp that is out of range
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
            if len(value) > LONGEST_SHORT_STRING:
                raise ValueError(f"{name} is longer than {LONGEST_SHORT_STRING} bytes")
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
    """Return the properties that the flags of a content header announce, as pairs of name and type.

    The types are `short`, `octet`, `u64` and `table`.
    """
    found = _PRESENT.get(flags)
    if found is None:
        found = tuple((name, kind) for flag, name, kind in _ORDER if flags & flag)
        if len(_PRESENT) < 256:
            _PRESENT[flags] = found
    return found
