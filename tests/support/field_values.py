"""Generators of encoded field tables and of properties, as any client may send them: odd names, all types, duplicates.

Numbers are finite: brokers refuse NaN and infinity.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from math import isfinite
from typing import Any

from hypothesis import strategies as st

from warren.wire.field_tables import Field, Value
from warren.wire.properties import Properties

SHORT = st.binary(max_size=30)
NAMES = st.binary(max_size=12) | st.sampled_from(
    (
        b"CC",
        b"BCC",
        b"x-death",
        b"x-first-death-reason",
        b"x-first-death-queue",
        b"x-last-death-reason",
        b"x-last-death-exchange",
    )
)
"""Names of fields: any bytes, and those that dead-lettering reads or writes."""


def _sized(kind: bytes, data: bytes) -> bytes:
    return kind + struct.pack(">I", len(data)) + data


_FLAT = st.one_of(
    st.binary(max_size=9).map(lambda text: _sized(b"S", text)),
    st.binary(max_size=9).map(lambda text: _sized(b"x", text)),
    st.integers(0, 255).map(lambda value: b"t" + bytes((value,))),
    st.binary(min_size=1, max_size=1).map(lambda data: b"b" + data),
    st.binary(min_size=2, max_size=2).map(lambda data: b"s" + data),
    st.binary(min_size=4, max_size=4).map(lambda data: b"I" + data),
    st.binary(min_size=8, max_size=8).map(lambda data: b"l" + data),
    st.binary(min_size=8, max_size=8).map(lambda data: b"T" + data),
    st.floats(allow_nan=False, allow_infinity=False).map(lambda number: b"d" + struct.pack(">d", number)),
    st.binary(min_size=5, max_size=5).map(lambda data: b"D" + data),
    st.just(b"V"),
)


def _table(fields: list[tuple[bytes, bytes]]) -> bytes:
    return b"".join(bytes((len(name),)) + name + value for name, value in fields)


VALUES = st.recursive(
    _FLAT,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: _sized(b"A", b"".join(items))),
        st.lists(st.tuples(NAMES, inner), max_size=2).map(lambda fields: _sized(b"F", _table(fields))),
    ),
    max_leaves=6,
)
"""Encoded values of fields, with their type letters."""
TABLES = st.lists(st.tuples(NAMES, VALUES), max_size=6).map(_table)
"""Encoded field tables, without their lengths. A name may be in one twice."""


def finite_values(fields: Mapping[str, Field]) -> bool:
    """Return False if NaN or an infinite number is in the fields of a decoded table, at any depth."""
    return all(_finite(field.value) for field in fields.values())


def _finite(value: Value) -> bool:
    if isinstance(value, float):
        return isfinite(value)
    if isinstance(value, dict):
        return all(map(_finite, value.values()))
    return all(map(_finite, value)) if isinstance(value, list) else True


def properties_with(headers: st.SearchStrategy[Any]) -> st.SearchStrategy[Properties]:
    """Return a generator of the properties of messages.

    :param headers: generator of their headers: encoded tables, or decoded ones
    """
    return st.fixed_dictionaries(
        {},
        optional={
            "content_type": SHORT,
            "content_encoding": SHORT,
            "headers": headers,
            "delivery_mode": st.integers(0, 255),
            "priority": st.integers(0, 255),
            "correlation_id": SHORT,
            "reply_to": SHORT,
            "expiration": SHORT,
            "message_id": SHORT,
            "timestamp": st.integers(0, 2**64 - 1),
            "type": SHORT,
            "user_id": SHORT,
            "app_id": SHORT,
            "cluster_id": SHORT,
        },
    ).map(lambda given: Properties(given))


PROPERTIES = properties_with(TABLES)
"""Properties of messages; `headers` is an encoded table."""
