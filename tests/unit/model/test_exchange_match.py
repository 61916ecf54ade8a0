"""Matching of a message that has many routing keys."""

from __future__ import annotations

import pytest

from warren.broker.model.exchange.exchange import Binding, Exchange
from warren.wire.field_tables import decode_fields, encode

HEADERS = encode({"a": 1})
KEYS = [b"%d" % number for number in range(1000)]


@pytest.mark.parametrize("kind", [b"headers", b"fanout"])
def test_an_exchange_that_ignores_keys_looks_at_its_bindings_once(kind: bytes) -> None:
    destination = Exchange(b"destination", b"fanout", False, False, False, b"")
    exchange = Exchange(b"source", kind, False, False, False, b"")
    exchange.bind(Binding(destination, b"", HEADERS), is_queue=False)
    assert exchange.match(KEYS, decode_fields(HEADERS)) == [destination]
