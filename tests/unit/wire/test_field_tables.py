"""Field tables: encoding and decoding, compared with pamqp, and malformed bytes.

The types are those of https://www.rabbitmq.com/amqp-0-9-1-errata.
"""

from __future__ import annotations

import struct
from datetime import UTC, datetime
from decimal import Decimal
from random import Random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pamqp import decode as pamqp_decode
from pamqp import encode as pamqp_encode
from pamqp.common import FieldTable

from tests.support.field_values import finite_values
from tests.support.tiers import examples
from warren.wire.content import MalformedProperties, walk_table
from warren.wire.field_tables import (
    MAX_DEPTH,
    TYPE_NAMES,
    TableError,
    Timestamp,
    Value,
    decode,
    decode_fields,
    decode_outer_fields,
    encode,
    field_of,
    join,
    long_field,
    sort_fields,
)

NAMES = st.text(max_size=60)
DECIMALS = st.builds(
    lambda digits, scale: Decimal(digits).scaleb(-scale), st.integers(0, 2**31 - 1), st.integers(0, 20)
)
SCALARS: st.SearchStrategy[Value] = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.binary()
    | DECIMALS
)


def tables(times: st.SearchStrategy[Timestamp]) -> st.SearchStrategy[dict[str, Value]]:
    values: st.SearchStrategy[Value] = st.recursive(
        SCALARS | times,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
        max_leaves=12,
    )
    return st.dictionaries(NAMES, values, max_size=6)


TABLES = tables(st.builds(Timestamp, st.integers(0, 2**64 - 1)))


def well_formed(table: bytes) -> bool:
    """Return the verdict of the validation that decodes no values."""
    try:
        walk_table(table, 0, len(table), 0)
    except (MalformedProperties, IndexError, struct.error):
        return False
    return True


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize(("kind", "encoding"), [(b"d", ">d"), (b"f", ">f")])
def test_a_number_that_is_not_finite_is_read_but_not_taken(number: float, kind: bytes, encoding: str) -> None:
    encoded = kind + struct.pack(encoding, number)
    assert repr(decode(b"\1a" + encoded)) == repr({"a": number})
    assert not well_formed(b"\1a" + encoded)
    inner = b"A" + struct.pack(">I", len(encoded)) + encoded
    assert not well_formed(b"\1a" + inner)


@pytest.mark.parametrize("number", [0.0, -1.5, 3.4028234663852886e38, -3.4028234663852886e38, 1e-45])
@pytest.mark.parametrize(("kind", "encoding"), [(b"d", ">d"), (b"f", ">f")])
def test_finite_numbers_are_taken(number: float, kind: bytes, encoding: str) -> None:
    assert well_formed(b"\1a" + kind + struct.pack(encoding, number))


@given(TABLES)
@settings(deadline=None)
@example({"": {}, "a": [], "b": [[], {}]})
@example({"digits": Decimal(2**32 - 1)})
def test_a_table_round_trips(table: dict[str, Value]) -> None:
    encoded = encode(table)
    assert decode(encoded) == table
    fields = decode_fields(encoded)
    assert join(fields) == encoded
    assert [type(field.value) for field in fields.values()] == [type(value) for value in table.values()]
    assert well_formed(encoded)


@given(tables(st.builds(Timestamp, st.integers(0, 2**32 - 1))))
@settings(deadline=None, max_examples=examples(50))
def test_pamqp_decodes_encoded_tables(table: dict[str, Value]) -> None:
    encoded = encode(table)
    consumed, read = pamqp_decode.field_table(struct.pack(">I", len(encoded)) + encoded)
    assert consumed == len(encoded) + 4
    assert read == pamqp_shape(table)


def pamqp_shape(value: Any) -> Any:
    """Convert a value to pamqp's types: byte arrays and datetimes (pamqp takes times after 2106 for milliseconds)."""
    if isinstance(value, dict):
        return {name: pamqp_shape(item) for name, item in value.items()}
    if isinstance(value, list):
        return [pamqp_shape(item) for item in value]
    if isinstance(value, bytes):
        return bytearray(value)
    if isinstance(value, Timestamp):
        return datetime.fromtimestamp(value, UTC)
    return value


@pytest.mark.parametrize(
    ("kind", "raw", "value"),
    [
        ("t", b"\1", True),
        ("t", b"\0", False),
        ("b", b"\xff", -1),
        ("B", b"\xff", 255),
        ("s", b"\xff\xfe", -2),
        ("u", b"\xff\xfe", 65534),
        ("I", b"\xff\xff\xff\xfd", -3),
        ("i", b"\xff\xff\xff\xfd", 2**32 - 3),
        ("l", b"\xff" * 8, -1),
        ("f", struct.pack(">f", 0.5), 0.5),
        ("d", struct.pack(">d", 1e300), 1e300),
        ("D", b"\2" + struct.pack(">I", 314), Decimal("3.14")),
        ("S", b"\0\0\0\2hi", "hi"),
        ("x", b"\0\0\0\2hi", b"hi"),
        ("A", b"\0\0\0\3t\1V", [True, None]),
        ("T", struct.pack(">Q", 1_700_000_000), 1_700_000_000),
        ("F", b"\0\0\0\3\1aV", {"a": None}),
        ("V", b"", None),
    ],
)
def test_every_type_is_decoded_and_encoded_unchanged(kind: str, raw: bytes, value: Value) -> None:
    encoded = b"\1k" + kind.encode() + raw
    (field,) = decode_fields(encoded).values()
    assert (field.kind, field.value, field.raw) == (kind, value, kind.encode() + raw)
    assert join({"k": field}) == encoded
    assert field.type_name == TYPE_NAMES[kind]
    assert field.is_integer == (kind in "bBsuIil")
    assert well_formed(encoded)


def test_names_and_strings_need_not_be_utf8() -> None:
    encoded = b"\2\xff\xfeS\0\0\0\2\xc3\x28"
    fields = decode_fields(encoded)
    assert join(fields) == encoded
    assert encode(decode(encoded)) == encoded


def test_the_last_of_two_fields_of_a_name_counts() -> None:
    assert decode(b"\1at\0\1at\1") == {"a": True}


def test_integers_are_encoded_in_the_smallest_width() -> None:
    assert field_of(5).raw == b"I\0\0\0\5"
    assert field_of(-(2**31)).kind == "I"
    assert field_of(2**31).kind == "l"
    assert long_field(5).raw == b"l" + struct.pack(">q", 5)


@pytest.mark.parametrize(
    "value",
    [
        Decimal("-1"),
        Decimal(2**32),
        Decimal("NaN"),
        Decimal("1E-300"),
        2**63,
        -(2**63) - 1,
        Timestamp(-1),
        float("nan"),
        float("-inf"),
        [float("inf")],
    ],
)
def test_what_no_type_can_hold_is_refused(value: Value) -> None:
    with pytest.raises(ValueError, match="field table cannot hold"):
        encode({"k": value})


def test_a_name_may_have_255_bytes() -> None:
    assert decode(encode({"k" * 255: 1})) == {"k" * 255: 1}
    with pytest.raises(ValueError, match="longer than 255 bytes"):
        encode({"\u00e9" * 128: 1})


# -- bytes that are no table


@pytest.mark.parametrize(
    "encoded",
    [
        b"\1",
        b"\1a",
        b"\5a",
        b"\1aZ",
        b"\1a\0",
        b"\1aI\0\0\0",
        b"\1aS\0\0\0\5hi",
        b"\1aS\xff\xff\xff\xff",
        b"\1aF\0\0\0\5\1aV",
        b"\1aF\0\0\0\2\1aV",
        b"\1aF\0\0\0\3\1aI\0\0\0\0",
        b"\1aA\0\0\0\1I\0\0\0\0",
        b"\1aA\xff\xff\xff\xff",
        b"\1aD\0\0\0\0",
        b"\1at",
    ],
)
def test_malformed_tables(encoded: bytes) -> None:
    with pytest.raises(TableError):
        decode_fields(encoded)
    assert not well_formed(encoded)


@given(TABLES, st.data())
@settings(deadline=None, max_examples=examples(60))
def test_a_truncated_table_is_malformed_or_ends_between_fields(table: dict[str, Value], data: Any) -> None:
    encoded = encode(table)
    cut = encoded[: data.draw(st.integers(0, len(encoded)))]
    ends = {len(encode(dict(list(table.items())[:count]))) for count in range(len(table) + 1)}
    assert well_formed(cut) == (len(cut) in ends)
    if len(cut) in ends:
        decode(cut)
    else:
        with pytest.raises(TableError):
            decode(cut)


@given(st.binary(max_size=60) | st.lists(st.sampled_from(list(b"\0\1\2\3aAFSxItTVD\xff"))).map(bytes))
@settings(deadline=None, max_examples=examples(400))
def test_any_bytes_are_a_table_or_a_table_error(encoded: bytes) -> None:
    """The validation that a broker does instead of decoding has the same verdict, but refuses NaN and infinity."""
    try:
        fields = decode_fields(encoded)
    except TableError:
        assert not well_formed(encoded)
    else:
        assert well_formed(encoded) == finite_values(fields)
        assert (
            decode(join(fields)) == {name: field.value for name, field in fields.items()}
            or b"\xff" in encoded
            or not well_formed(encoded)
        )


@pytest.mark.parametrize("kind", [b"F", b"A"])
def test_nesting_is_bounded(kind: bytes) -> None:
    def nested(depth: int) -> bytes:
        inner = b""
        for _ in range(depth):
            inner = kind + struct.pack(">I", len(inner)) + inner
            if kind == b"F":
                inner = b"\1k" + inner
        return inner if kind == b"F" else b"\1k" + inner

    decode(nested(MAX_DEPTH))
    assert well_formed(nested(MAX_DEPTH))
    for depth in (MAX_DEPTH + 1, 20_000):
        with pytest.raises(TableError, match="deeper"):
            decode(nested(depth))
        assert not well_formed(nested(depth))


def test_tables_and_arrays_within_a_table_can_be_left_encoded() -> None:
    table = encode({"n": 1, "table": {"a": {"b": 2}}, "list": [1], "CC": ["x"], "text": "y"})
    whole = decode_fields(table)
    outer = decode_outer_fields(table, ("CC",))
    assert join(outer) == table
    assert {name: field.value for name, field in outer.items()} == {
        "n": 1,
        "table": None,
        "list": None,
        "CC": ["x"],
        "text": "y",
    }
    assert [field.kind for field in outer.values()] == [field.kind for field in whole.values()]


def test_what_is_left_encoded_is_not_read_but_ends_within_its_table() -> None:
    unread = b"\1kF" + struct.pack(">I", 3) + b"\xff\xff\xff"
    assert decode_outer_fields(unread)["k"].raw == unread[2:]
    for cut in range(1, len(unread)):
        with pytest.raises(TableError):
            decode_outer_fields(unread[:cut])


def test_tables_encoded_by_pamqp_are_decoded() -> None:
    table: FieldTable = {
        "flag": True,
        "small": 5,
        "text": "x",
        "list": [1, "two", {"three": 3}],
        "none": None,
    }
    encoded = pamqp_encode.field_table(table)
    assert decode(encoded[4:]) == table


@given(st.dictionaries(NAMES, st.integers(-(2**31), 2**31 - 1)), st.randoms(use_true_random=False))
def test_sorted_fields_are_in_the_order_of_their_names(table: dict[str, int], random: Random) -> None:
    names = sorted(table, key=str.encode)
    shuffled = names[:]
    random.shuffle(shuffled)
    nested: Value = {"b": 1, "a": 2}
    raw = sort_fields(encode({name: table[name] for name in shuffled}) + b"\x01\xff" + field_of(nested).raw)
    assert raw == encode({name: table[name] for name in names}) + b"\x01\xff" + field_of(nested).raw


@pytest.mark.parametrize("malformed", [b"\x01", b"\x05a", b"\x01aI\0", b"\x01aZ", b"\x01aS\0\0\0\x05abc"])
def test_malformed_tables_are_not_sorted(malformed: bytes) -> None:
    with pytest.raises(TableError):
        sort_fields(malformed)
