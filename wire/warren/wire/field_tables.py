"""Field tables: the typed name-value lists in arguments and headers.

RabbitMQ's errata to section 4.2.1 of AMQP 0-9-1 define the types (https://www.rabbitmq.com/amqp-0-9-1-errata). A field keeps
its type and its bytes: a broker reports the type in its errors, and must forward a value unchanged (an integer that was sent
as a byte leaves as a byte).
"""

from __future__ import annotations

import struct
from collections.abc import Container
from decimal import Decimal
from math import isfinite
from typing import NamedTuple, TypeAlias


class Timestamp(int):
    """Field value of type `T`: seconds since 1970."""


class LongInteger(int):
    """Integer that is encoded as a field of type `l` (signed, 64 bits), also if it fits in 32 bits."""


Value: TypeAlias = "bool | int | float | str | bytes | Decimal | list[Value] | dict[str, Value] | None"
"""A value that a field table can hold."""


class Field(NamedTuple):
    """A value of a field table, with its type and its encoding."""

    kind: str
    """Letter that stands for the type in the encoding, such as `S` for a long string."""
    value: Value
    raw: bytes
    """Encoding of the field: type letter and value."""

    @property
    def type_name(self) -> str:
        """Name of the type in RabbitMQ's error texts."""
        return TYPE_NAMES[self.kind]

    @property
    def is_integer(self) -> bool:
        return self.kind in INTEGERS


TYPE_NAMES = {
    "t": "bool",
    "b": "byte",
    "B": "unsignedbyte",
    "s": "short",
    "u": "unsignedshort",
    "I": "signedint",
    "i": "unsignedint",
    "l": "long",
    "L": "long",
    "f": "float",
    "d": "double",
    "D": "decimal",
    "S": "longstr",
    "A": "array",
    "T": "timestamp",
    "F": "table",
    "V": "void",
    "x": "binary",
}
INTEGERS = frozenset("bBsuIilL")

_FIXED = {
    "b": struct.Struct(">b"),
    "B": struct.Struct(">B"),
    "s": struct.Struct(">h"),
    "u": struct.Struct(">H"),
    "I": struct.Struct(">i"),
    "i": struct.Struct(">I"),
    "l": struct.Struct(">q"),
    "L": struct.Struct(">q"),
    "f": struct.Struct(">f"),
    "d": struct.Struct(">d"),
}
VALUE_WIDTHS = {"t": 1, "T": 8, "V": 0, "D": 5, **{kind: fixed.size for kind, fixed in _FIXED.items()}}
"""Size of an encoded value in bytes, by type letter, for the types of fixed size."""
_LENGTH = struct.Struct(">I")
_LONG = struct.Struct(">q")
_UNSIGNED_LONG = struct.Struct(">Q")
_DECIMAL = struct.Struct(">BI")

MAX_DEPTH = 64
"""Deepest nesting of tables and arrays that is accepted, so that a peer cannot exhaust the stack."""


MAX_VALUES = 4096
"""Most values of a table in a method, so that decoding it takes some milliseconds."""
MAX_LOGIN_VALUES = 256
"""Most values of a client's properties, which come before the login: those of common clients have 10 to 20."""


class TableError(ValueError):
    """Error in bytes that are not a valid field table."""


def decode_fields(table: bytes, opaque: str | None = None) -> dict[str, Field]:
    """Decode a table (without its length prefix) into its fields by name, in their order.

    :param opaque: name of a field that is left encoded if it is an array: its value is None, its `raw` holds the bytes
    :raises TableError: if the bytes end early, a type is unknown, or the nesting is deeper than `MAX_DEPTH` (64)
    """
    try:
        return _fields(table, 0, len(table), 0, opaque)
    except (struct.error, IndexError):
        raise TableError("malformed field table: it ends early") from None


def decode_outer_fields(table: bytes, decoded: Container[str] = ()) -> dict[str, Field]:
    """Decode the fields of a table (without its length prefix), but not what the tables and arrays in it contain.

    The value of such a field is None, and its `raw` holds the bytes, which are not checked. The time that this takes does
    not depend on what the fields contain.

    :param decoded: names of fields that are decoded whole even so
    :raises TableError: if the bytes end early, or a type is unknown
    """
    try:
        return _fields(table, 0, len(table), 0, None, decoded)
    except (struct.error, IndexError):
        raise TableError("malformed field table: it ends early") from None


def decode(table: bytes) -> dict[str, Value]:
    """Decode a table (without its length prefix) into its values, by name.

    :raises TableError: if the bytes end early, a type is unknown, or the nesting is deeper than `MAX_DEPTH` (64)
    """
    return {name: field.value for name, field in decode_fields(table).items()}


def sort_fields(table: bytes) -> bytes:
    """Return a table (without its length prefix) with its fields in the order of their names.

    Tables within it stay as they are. So RabbitMQ stores and compares the arguments of bindings.

    :raises TableError: if the table is malformed (see `decode_fields`)
    """
    fields: list[tuple[bytes, bytes]] = []
    position = 0
    try:
        while position < len(table):
            after_name = position + 1 + table[position]
            after, _, _ = _value(table, after_name, len(table), 0)
            fields.append((table[position + 1 : after_name], table[position:after]))
            position = after
    except (struct.error, IndexError):
        raise TableError("malformed field table: it ends early") from None
    if position != len(table):
        raise TableError("malformed field table: a field reaches past the end of its table")
    # Fields of the same name keep their order.
    fields.sort(key=lambda field: field[0])
    return b"".join(encoded for _, encoded in fields)


def decode_items(array: bytes) -> list[Field]:
    """Decode an array (without its length prefix) into its items, each with its type.

    :raises TableError: if the bytes end early, a type is unknown, or the nesting is deeper than `MAX_DEPTH` (64)
    """
    items: list[Field] = []
    position = 0
    try:
        while position < len(array):
            after, kind, value = _value(array, position, len(array), 0)
            items.append(Field(kind, value, array[position:after]))
            position = after
    except (struct.error, IndexError):
        raise TableError("malformed field array: it ends early") from None
    return items


def check_peer_table(table: bytes, most_values: int = MAX_VALUES) -> None:
    """Check a table (without its length prefix) that a peer sent in a method, before it is decoded.

    A table that ends early or has an unknown type passes: decoding refuses it.

    :raises TableError: if it contains NaN or an infinite number, at any depth, or more than `most_values` values
    """
    count, waiting = 0, [(0, len(table), True)]
    try:
        while waiting:
            position, end, is_table = waiting.pop()
            while position < end:
                count += 1
                if count > most_values:
                    raise TableError(f"field table with more than {most_values} values")
                if is_table:
                    position += 1 + table[position]
                kind = chr(table[position])
                position += 1
                width = VALUE_WIDTHS.get(kind)
                if width is None:
                    (length,) = _LENGTH.unpack_from(table, position)
                    position += 4
                    if kind in "FA":
                        waiting.append((position, min(position + length, end), kind == "F"))
                    position += length
                else:
                    if kind in "df" and not isfinite(_FIXED[kind].unpack_from(table, position)[0]):
                        raise TableError("field table with a number that is not finite")
                    position += width
    except (struct.error, IndexError):
        pass


def encode(table: dict[str, Value]) -> bytes:
    """Encode a table, without its length prefix.

    Integers become `I` if they fit in 32 bits, else `l`, as does each `LongInteger`.

    :raises ValueError: for a name longer than 255 bytes, or a number that no type can hold or that is not finite
    """
    return b"".join(name_bytes(name) + encode_value(value) for name, value in table.items())


def join(fields: dict[str, Field]) -> bytes:
    """Encode decoded fields as a table again, each with its original bytes."""
    return b"".join(name_bytes(name) + field.raw for name, field in fields.items())


def field_of(value: Value) -> Field:
    """Return a value as a field: with the type that RabbitMQ's field tables use for it, and its encoding."""
    raw = encode_value(value)
    return Field(chr(raw[0]), value, raw)


def long_field(value: int) -> Field:
    """Return an integer as a field of type `l` (signed, 64 bits) whatever its size, as RabbitMQ encodes counters."""
    return Field("l", value, b"l" + _LONG.pack(value))


def name_bytes(name: str) -> bytes:
    """Encode the name of a field as a short string.

    :raises ValueError: if it is longer than 255 bytes
    """
    encoded = name.encode("utf-8", "surrogateescape")
    if len(encoded) > 255:
        raise ValueError(f"the field name {name[:40]!r}... is longer than 255 bytes")
    return bytes((len(encoded),)) + encoded


def encode_value(value: Value) -> bytes:
    """Encode a value with its type letter in front.

    :raises ValueError: for a number that no type can hold or that is not finite
    """
    if value is None:
        return b"V"
    if isinstance(value, bool):
        return b"t\x01" if value else b"t\x00"
    if isinstance(value, Timestamp):
        if not 0 <= value < 2**64:
            raise ValueError(
                f"a field table cannot hold the time {int(value)}: it is an unsigned 64-bit number"
            )
        return b"T" + _UNSIGNED_LONG.pack(value)
    if isinstance(value, int):
        if -(2**31) <= value < 2**31 and not isinstance(value, LongInteger):
            return b"I" + _FIXED["I"].pack(value)
        if not -(2**63) <= value < 2**63:
            raise ValueError(f"a field table cannot hold the integer {value}: it has to fit in 64 bits")
        return b"l" + _LONG.pack(value)
    if isinstance(value, float):
        if not isfinite(value):
            raise ValueError(f"a field table cannot hold {value}: brokers refuse a number that is not finite")
        return b"d" + _FIXED["d"].pack(value)
    if isinstance(value, str):
        encoded = value.encode("utf-8", "surrogateescape")
        return b"S" + _LENGTH.pack(len(encoded)) + encoded
    if isinstance(value, bytes):
        return b"x" + _LENGTH.pack(len(value)) + value
    if isinstance(value, Decimal):
        exponent = value.as_tuple().exponent
        if not isinstance(exponent, int):
            raise ValueError(f"a field table cannot hold {value}")
        scale = max(0, -exponent)
        unscaled = int(value.scaleb(scale))
        if not 0 <= unscaled < 2**32 or scale > 255:
            raise ValueError(
                f"a field table cannot hold the decimal {value}: its digits are an unsigned 32-bit number"
            )
        return b"D" + _DECIMAL.pack(scale, unscaled)
    if isinstance(value, list):
        items = b"".join(encode_value(item) for item in value)
        return b"A" + _LENGTH.pack(len(items)) + items
    items = encode(value)
    return b"F" + _LENGTH.pack(len(items)) + items


def _fields(
    data: bytes,
    start: int,
    end: int,
    depth: int,
    opaque: str | None = None,
    decoded: Container[str] | None = None,
) -> dict[str, Field]:
    fields: dict[str, Field] = {}
    position = start
    while position < end:
        length = data[position]
        name = data[position + 1 : position + 1 + length].decode("utf-8", "surrogateescape")
        position += 1 + length
        kind = chr(data[position]) if position < end else ""
        if (name == opaque and kind == "A") or (
            decoded is not None and kind in ("A", "F") and name not in decoded
        ):
            (length,) = _LENGTH.unpack_from(data, position + 1)
            after, value = position + 5 + length, None
        else:
            after, kind, value = _value(data, position, end, depth)
        fields[name] = Field(kind, value, data[position:after])
        position = after
    if position != end:
        raise TableError("malformed field table: a field reaches past the end of its table")
    return fields


def _value(data: bytes, position: int, end: int, depth: int) -> tuple[int, str, Value]:
    if position >= end:
        raise TableError("malformed field table: a name without a value")
    kind = chr(data[position])
    position += 1
    value: Value
    if kind in _FIXED:
        fixed = _FIXED[kind]
        (value,) = fixed.unpack_from(data, position)
        position += fixed.size
    elif kind in "Sx":
        (length,) = _LENGTH.unpack_from(data, position)
        position += 4
        raw = data[position : position + length]
        position += length
        value = raw.decode("utf-8", "surrogateescape") if kind == "S" else raw
    elif kind == "t":
        value = data[position] != 0
        position += 1
    elif kind == "T":
        value = Timestamp(_UNSIGNED_LONG.unpack_from(data, position)[0])
        position += 8
    elif kind == "V":
        value = None
    elif kind == "D":
        scale, unscaled = _DECIMAL.unpack_from(data, position)
        value = Decimal(unscaled).scaleb(-scale)
        position += 5
    elif kind in "FA":
        (length,) = _LENGTH.unpack_from(data, position)
        position += 4
        inner = position + length
        if inner > end:
            raise TableError("malformed field table: a nested value reaches past the end of its table")
        if depth >= MAX_DEPTH:
            raise TableError(f"field table nested deeper than {MAX_DEPTH}")
        if kind == "F":
            table: dict[str, Value] = {}
            while position < inner:
                length = data[position]
                name = data[position + 1 : position + 1 + length].decode("utf-8", "surrogateescape")
                position, _, table[name] = _value(data, position + 1 + length, inner, depth + 1)
            value = table
        else:
            items: list[Value] = []
            while position < inner:
                position, _, item = _value(data, position, inner, depth + 1)
                items.append(item)
            value = items
        position = inner
    else:
        raise TableError(f"unknown field type {kind!r}")
    if position > end:
        raise TableError("malformed field table: a value reaches past the end of its table")
    return position, kind, value
