"""Capture events: properties and body of a batch, readable by any JSON parser."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from warren.core import capture_events
from warren.core.capture_events import Event, EventBatch, event_prefix
from warren.wire import properties

TEXT = st.text(max_size=40)


def batch(*content: Event, sequence: int = 1) -> EventBatch:
    return EventBatch("shop-1", "sdk", "shop", sequence, content, "warren.events")


def test_a_batch_has_its_source_and_sequence_number() -> None:
    message = batch((event_prefix(capture_events.STARTED), 1_700_000_000_000_001, "", -1), sequence=42)
    values = properties.decode(message.header())
    assert {name: field.value for name, field in values.headers.items()} == {
        "source": "shop-1",
        "by": "sdk",
        "sequence": 42,
        "count": 1,
    }
    assert values.data("type") == b"warren.events"
    assert values.data("content_type") == b"application/json"
    assert values.data("app_id") == b"shop"
    assert values.data("message_id") == b"shop-1:42"
    assert (values["timestamp"], values["delivery_mode"]) == (1_700_000_000, 2)


def test_unknown_values_have_no_key() -> None:
    published = event_prefix(capture_events.PUBLISHED, "orders", "order.placed")
    delivered = event_prefix(capture_events.DELIVERED, "", "q", "q", True, 2)
    assert json.loads(capture_events.encode_events([(published, 5, "a", 0), (delivered, 6, "", -1)])) == [
        {
            "event": "published",
            "exchange": "orders",
            "routing_key": "order.placed",
            "at": 5,
            "message_id": "a",
            "bytes": 0,
        },
        {
            "event": "delivered",
            "exchange": "",
            "routing_key": "q",
            "queue": "q",
            "redelivered": True,
            "attempt": 2,
            "at": 6,
        },
    ]


@given(st.sampled_from(capture_events.EVENTS), TEXT, TEXT, TEXT, TEXT, st.integers(0), st.integers(-1))
def test_any_text_round_trips(
    event: str, exchange: str, key: str, queue: str, message_id: str, at: int, size: int
) -> None:
    (read,) = json.loads(
        capture_events.encode_events([(event_prefix(event, exchange, key, queue), at, message_id, size)])
    )
    assert (read["event"], read["exchange"], read["routing_key"], read["queue"], read["at"]) == (
        event,
        exchange,
        key,
        queue,
        at,
    )
    assert read.get("message_id", "") == message_id
    assert read.get("bytes", -1) == size
    assert set(read) <= set(capture_events.EVENT_KEYS)


def test_a_routing_key_that_is_not_utf8_leaves_the_batch_valid_json() -> None:
    strange = b"k\xff".decode("utf-8", "surrogateescape")
    body = capture_events.encode_events(
        [(event_prefix(capture_events.PUBLISHED, "x", strange), 1, strange, 1)]
    )
    assert body.isascii()
    assert len(json.loads(body)) == 1
