"""Properties of a message: the in-place parser and the full decoder agree, and both refuse malformed bytes."""

from __future__ import annotations

import struct
from contextlib import nullcontext

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import commands, header

from tests.support.field_values import finite_values, properties_with
from tests.support.tiers import examples
from warren.wire import field_tables, properties
from warren.wire.content import HEADER_FIXED, MalformedProperties, RoutingProperties
from warren.wire.properties import Properties

TABLE = st.dictionaries(st.text(max_size=9), st.integers(0, 9) | st.text(max_size=9), max_size=3).map(
    lambda table: field_tables.decode_fields(field_tables.encode(dict(table)))
)
PROPERTIES = properties_with(TABLE)


def parse(routing: RoutingProperties, payload: bytes, padding: bytes = b"") -> None:
    flags = int.from_bytes(payload[12:14])
    routing.parse(
        padding + payload + padding, len(padding) + HEADER_FIXED, len(padding) + len(payload), flags
    )


@given(PROPERTIES, st.binary(max_size=3))
@settings(deadline=None, max_examples=examples(300))
def test_the_parser_and_the_decoder_agree(given: Properties, padding: bytes) -> None:
    payload = properties.encode(given, 5)
    decoded = properties.decode(payload)
    assert decoded == given
    routing = RoutingProperties()
    # Nothing of an earlier message remains.
    parse(routing, properties.encode(Properties(all_properties()), 0))
    parse(routing, payload, padding)
    assert routing.delivery_mode == given.get("delivery_mode", 0)
    assert routing.priority == given.get("priority", 0)
    assert routing.headers == field_tables.join(given.headers)
    assert routing.reply_to == given.get("reply_to", b"")
    assert routing.has_expiration == ("expiration" in given)
    assert routing.has_user_id == ("user_id" in given)
    if routing.has_expiration:
        assert routing.expiration == given["expiration"]
    if routing.has_user_id:
        assert routing.user_id == given["user_id"]


def all_properties() -> Properties:
    return Properties(
        headers=field_tables.decode_fields(b"\1kt\1"),
        delivery_mode=2,
        priority=9,
        reply_to=b"old",
        expiration=b"60000",
        user_id=b"old",
    )


def test_parsing_a_plain_persistent_message_clears_the_previous_one() -> None:
    routing = RoutingProperties()
    parse(routing, properties.encode(all_properties(), 0))
    parse(routing, properties.encode(Properties(delivery_mode=2), 0))
    assert (routing.headers, routing.reply_to, routing.has_expiration, routing.has_user_id) == (
        b"",
        b"",
        False,
        False,
    )


@given(PROPERTIES)
@settings(deadline=None)
def test_pamqp_decodes_the_same(given: Properties) -> None:
    payload = properties.encode(given, 77)
    theirs = header.ContentHeader()
    try:
        theirs.unmarshal(payload)
    except (ValueError, OverflowError):
        # pamqp refuses strings that are not UTF-8, and times that datetime cannot represent.
        return
    assert theirs.body_size == 77
    read = theirs.properties
    assert isinstance(read, commands.Basic.Properties)
    for ours, name in (("delivery_mode", "delivery_mode"), ("priority", "priority")):
        assert getattr(read, name) == given.get(ours)
    for name in ("content_type", "correlation_id", "reply_to", "expiration", "message_id", "app_id"):
        value = given.data(name)
        assert getattr(read, name) == (None if value is None else value.decode())


@given(PROPERTIES, st.data())
@settings(deadline=None, max_examples=examples(150))
def test_cut_or_padded_properties_are_malformed(given: Properties, data: st.DataObject) -> None:
    payload = properties.encode(given, 5)
    wrong = [payload + b"\0", payload + b"ab"]
    if len(payload) > HEADER_FIXED:
        wrong.append(payload[: data.draw(st.integers(HEADER_FIXED, len(payload) - 1))])
    for malformed in wrong:
        with pytest.raises(field_tables.TableError):
            properties.decode(malformed)
        for padding in (b"", b"\1" * 300):
            # Bytes after the payload are not parsed as a property.
            with pytest.raises(MalformedProperties):
                parse(RoutingProperties(), malformed, padding)


@pytest.mark.parametrize(
    "payload",
    [
        struct.pack(">HHQH", 60, 0, 0, 1),
        struct.pack(">HHQHH", 60, 0, 0, 1, 0),
        struct.pack(">HHQHI", 60, 0, 0, 0x2000, 2**32 - 1),
        struct.pack(">HHQHI", 60, 0, 0, 0x2000, 3) + b"\1aZ",
        struct.pack(">HHQHI", 60, 0, 0, 0x2000, 3) + b"\1aI",
    ],
    ids=["more-flags", "two-flag-words", "endless-table", "unknown-type", "table-ends-early"],
)
def test_malformed_properties(payload: bytes) -> None:
    with pytest.raises(field_tables.TableError):
        properties.decode(payload)
    routing = RoutingProperties()
    for _ in range(2):
        # Twice: a table that failed the validation must not be cached as valid.
        with pytest.raises(MalformedProperties):
            parse(routing, payload)


@given(st.binary(max_size=40), st.integers(0, 2**16 - 1))
@settings(deadline=None, max_examples=examples(300))
def test_the_parser_and_the_decoder_agree_on_arbitrary_bytes(data: bytes, flags: int) -> None:
    payload = struct.pack(">HHQH", 60, 0, 0, flags) + data
    # Bit 1 announces nothing.
    known = flags & ~2
    try:
        decoded = properties.decode(struct.pack(">HHQH", 60, 0, 0, known) + data)
    except field_tables.TableError:
        with pytest.raises(MalformedProperties):
            parse(RoutingProperties(), payload)
    else:
        # Only the parser refuses NaN and infinite numbers.
        refused = pytest.raises(MalformedProperties, match="not finite")
        with nullcontext() if finite_values(decoded.headers) else refused:
            parse(RoutingProperties(), payload)


def test_a_short_header_is_malformed() -> None:
    with pytest.raises(field_tables.TableError):
        properties.decode(b"\0\x3c\0\0")
