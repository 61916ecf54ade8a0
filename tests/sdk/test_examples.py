"""Examples of the SDK run unchanged and print the expected lines."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.example_programs import run

pytestmark = pytest.mark.processes

# Sorted: what two handlers print has no order between them.
PROMISED = {
    "rpc": ["a lamp is 9.90", "no reply; it may have been handled: True", "unknown_sku: there is no desk"],
    "observe": [
        "confirmed: 1, unconfirmed: 0",
        "in one trace: True",
        "spans: ['ack charges', 'process charges', 'publish charges']",
    ],
    "evolution": ["order_placed: 43 in CHF", "placed: 42 in EUR", "placed: 44 in EUR"],
    "capture": [
        "charge-42 acked confirmed delivered published",
        "charge-43 acked confirmed confirmed dead_lettered delivered published published",
    ],
    "replies": [
        "chandelier: in 30 days",
        "lamp: 9.90",
        "there is no desk, only ['lamp', 'chandelier']",
    ],
    "gather": [
        "2 offers, the best: glow for 8.50",
        "an offer is enough",
        "refused: ['we sell candles']",
        "silent: ['asleep.prices']",
    ],
    "handle": [
        "dead: rejected DeadLetter: a total cannot be negative",
        "written: nothing",
        "written: order 42 of acme",
    ],
    "handler_retry": ["charged at delivery 3", "dead: LookupError: no such order"],
    "batches": ["dead: -300.0 DeadLetter: no such temperature", "one insert: 100 rows"],
    "blocking": ["answered: 42", "noted: remember the milk"],
    "middleware": ["1300 characters in 42 bytes"],
    "lifespan": [
        "all handlers have ended",
        "database: charge 42",
        "pool closed",
        "published before the first consumer runs",
    ],
    "handlers_at_run_time": ["acme billed 42", "still in its queue: True"],
    "router": ["billed 42", "queues: ['billing.orders.dead', 'billing.orders']"],
    "plain_handler": ["lamps: 3", "lamps: 7"],
    "ordered": ["order 42: place, pay, ship", "order 43: place, pay, ship"],
    "stream_handlers": [
        "billed order 1 at offset 0",
        "billed order 2 at offset 1",
        "billed order 3 at offset 2",
        "total: 25.50",
    ],
    "stream_replay": [
        "again: order 2 to us",
        "replayed 1, the last one at offset 2",
        "shipped: order 0 to eu",
        "shipped: order 2 to us",
    ],
    "subscriptions": ["charged 42", "its handler failed; the message waits in its queue"],
    "connections": [
        "probe: HTTP/1.1 200 OK []",
        "state: closed",
        "state: closing",
        "state: connecting",
        "state: ready",
    ],
    "publish_ways": [
        "a batch: 50",
        "a batch: 50",
        "in a window: 98",
        "in order: 100",
        "published: 302",
    ],
    "publish": [
        "confirmed: 100",
        "dead: ValueError: nothing to ship",
        "refused; worth trying again: True",
        "unroutable: 312 unknown",
    ],
}


IN_EACH_TIER = {"capture", "handle", "rpc", "stream_handlers"}
"""Programs that already run in tier `test`: each is a process that takes a second to start."""


@pytest.mark.parametrize(
    "example",
    [pytest.param(each, marks=[] if each in IN_EACH_TIER else pytest.mark.slow) for each in PROMISED],
)
async def test_an_example_does_what_it_says(example: str) -> None:
    ran = await asyncio.to_thread(run, example)
    assert ran.returncode == 0, ran.stderr
    assert sorted(ran.stdout.splitlines()) == PROMISED[example], ran.stderr
