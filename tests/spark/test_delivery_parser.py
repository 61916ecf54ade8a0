"""Parsing of deliveries from bytes, divided in any way and malformed in many."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.tiers import examples
from warren.pipeline.source.delivery_parser import DeliveryParser, MessageColumns
from warren.wire import field_tables, methods, properties
from warren.wire.content import content_frames, join_content
from warren.wire.field_tables import TableError
from warren.wire.reply_codes import AmqpError

FRAME_MAX = 4096


def delivery_bytes(
    number: int, values: dict[str, properties.Property], body: bytes, key: bytes = b"k"
) -> bytes:
    """Return a delivery as a broker sends it; its stream offset is its number."""
    headers = values.get("headers")
    table = headers if isinstance(headers, bytes) else b""
    offset = b"\x0fx-stream-offset" + field_tables.long_field(number).raw
    content = join_content(1, properties.encode({**values, "headers": table + offset}, len(body)), body)
    deliver = methods.frame(1, "basic.deliver", b"tag", number + 1, False, b"x", key)
    return deliver + content_frames(content, 1, FRAME_MAX)


def parse(data: bytes, *cuts: int) -> MessageColumns:
    deliveries = DeliveryParser(FRAME_MAX, streamed=True)
    start = 0
    for cut in (*sorted(cuts), len(data)):
        deliveries.feed(data[start:cut])
        start = cut
    assert not deliveries.rest
    return deliveries.take()


PROPERTIES: list[dict[str, properties.Property]] = [
    {},
    {"message_id": b"1"},
    {"message_id": b"2", "headers": field_tables.encode({"a": 1})},
    {"message_id": b"2", "headers": field_tables.encode({"a": 1})},
    {"headers": field_tables.encode({"a": "\x0fx-stream-offsetl12345678"}), "timestamp": 5},
    {"headers": field_tables.encode({"zz": [1, {"b": None}]}), "priority": 9},
]


@settings(deadline=None, max_examples=examples(50), suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.tuples(st.sampled_from(PROPERTIES), st.sampled_from([0, 1, 5000, 20_000])), min_size=1, max_size=8
    ),
    st.lists(st.integers(0, 100_000), max_size=5),
)
def test_deliveries_are_parsed_however_their_bytes_are_divided(
    sent: list[tuple[dict[str, properties.Property], int]], cuts: list[int]
) -> None:
    data = b"".join(delivery_bytes(number, values, bytes(size)) for number, (values, size) in enumerate(sent))
    messages = parse(data, *(min(cut, len(data)) for cut in cuts))
    assert messages.offsets == list(range(len(sent)))
    assert [len(body) for body in messages.bodies] == [size for _, size in sent]
    assert messages.routings == [(False, "x", "k")] * len(sent)
    # Each row is what it would be by itself: nothing of another message's is left in it.
    alone = [parse(delivery_bytes(0, values, b"")).rows[0] for values, _ in sent]
    assert messages.rows == alone


WHOLE = delivery_bytes(0, {"type": b"t", "headers": field_tables.encode({"a": 1})}, b"body")

CONTENT = WHOLE[WHOLE.index(b"\x02\x00\x01") :]


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (WHOLE[:-1] + b"\x00", AmqpError),
        (b"\x01\x00\x01\x00\x10\x00\x00", AmqpError),
        (b"\x01\x00\x01\x00\x00\x00\x0a" + WHOLE[7:17] + b"\xce" + CONTENT, AmqpError),
        (CONTENT, AmqpError),
        (WHOLE.replace(b"aI", b"a?"), TableError),
        (WHOLE.replace(b"\x01t", b"\xfft"), TableError),
    ],
)
def test_malformed_deliveries_are_errors(data: bytes, error: type[Exception]) -> None:
    deliveries = DeliveryParser(FRAME_MAX, streamed=True)
    padded = data + bytes(8) if len(data) < 8 else data
    with pytest.raises(error):
        deliveries.feed(padded)
