"""Headers spliced into an encoded content: the same bytes as decoding and encoding all properties."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.field_values import PROPERTIES, TABLES
from tests.support.tiers import examples
from warren.wire import field_tables, properties
from warren.wire.content import join_content
from warren.wire.headers_splice import HeadersSplice, join_table, split_table
from warren.wire.properties import Properties


@given(PROPERTIES, TABLES, st.binary(max_size=20), st.integers(1, 65535))
@settings(deadline=None, max_examples=examples(300))
def test_a_splice_is_the_same_as_encoding_again(
    given: Properties, table: bytes, body: bytes, channel: int
) -> None:
    splice = HeadersSplice()
    splice.parse(join_content(channel, properties.encode(given, len(body)), body))
    sent = given.get("headers", b"")
    assert splice.table == sent
    assert splice.expiration == given.get("expiration")
    spliced = splice.join(channel, len(table).to_bytes(4) + table)
    changed = {**given, "headers": table}
    changed.pop("expiration", None)
    assert spliced == join_content(channel, properties.encode(changed, len(body)), body)


@given(TABLES, TABLES)
@settings(deadline=None, max_examples=examples(300))
def test_a_table_is_split_as_it_is_decoded(table: bytes, added: bytes) -> None:
    fields = split_table(table)
    decoded = field_tables.decode_fields(table)
    assert {name[1:].decode("utf-8", "surrogateescape"): raw for name, raw in fields.items()} == {
        name: field.raw for name, field in decoded.items()
    }
    joined = field_tables.join(decoded) + added
    assert join_table(fields, added) == len(joined).to_bytes(4) + joined
