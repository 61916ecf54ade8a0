"""The examples of the documentation run as they stand (but for their times), and print what they promise."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.example_programs import EXAMPLES, run

pytestmark = pytest.mark.slow

PROMISED = {
    "unpaid_order": ["order 41: paid in time", "order 42: cancelled", "order 42: paid late, refunded"],
    "once": ["charging for order 42", "receipt for order 42", "receipt for order 42"],
    "outbox": ["order 41: out of stock", "order 42: billed"],
    "transactional_once": ["receipt for order 42", "receipt for order 42", "payments: 1"],
    "delay": ["lamp on", "lamp off"],
    "dead_letters": ["failed in billing: OSError: the bank does not answer", "replayed and billed: 1"],
    "ladder": ["please pay order 42", "now pay order 42"],
    "work_queue": ["rendered 30"],
    "load_levelling": ["accepted 500", "done 500, at most 5 at once"],
    "immediate": ["no consumer: nobody is at home", "opened for a friend"],
    "catch_all": ["no queue is bound for order.refunded", 'kept {"order_id":"42"}'],
    "retry": [
        *(f"attempt {number}" for number in range(1, 5)),
        "parked: ConnectionError: the bank does not answer",
    ],
    "delay_cancelled": ["['order 41', 'order 42']", "cancelled", "pay order 42 now", "too_late"],
    "encryption": [
        "in transit: ciphertext",
        "decrypted: account='42' amount=100",
        "rejected: DeadLetter: the message is not encrypted, and only encrypted messages are accepted here",
    ],
    "timers": [
        "cancelled: True",
        "order 42: do not forget to pay",
        "report: 0 6 * * MON-FRI (Europe/Berlin)",
        "stock: every 0:05:00",
    ],
    "resequencer": ["order 42: placed", "order 42: paid", "order 42: shipped"],
    "claim_check": ["harbour: 1000000 pixels", "through the broker: 92 bytes"],
    "partitions": [f"{number} placed paid shipped" for number in range(40, 44)],
    "rate_limit": ["charged: 5", "not faster than allowed: True"],
    "routing_slip": [
        "flight to Rome",
        "hotel in Rome",
        "room 217 is free again",
        "seat 12A is free again",
        "not booked: there is no car",
    ],
    "saga": [
        "41: stock reserved",
        "41: completed",
        "42: stock reserved",
        "42: card refunded",
        "42: stock released",
        "42: compensated",
    ],
}


LONGER = {
    "unpaid_order": ("timedelta(seconds=1)", "timedelta(seconds=10)"),
    "delay": ("timedelta(seconds=1)", "timedelta(seconds=10)"),
    "ladder": ("900ms", "10s"),
    "timers": ("timedelta(seconds=1)", "timedelta(seconds=10)"),
    "immediate": ('Immediate("bell")', 'Immediate("bell", timeout=60)'),
}
"""Use times that are longer than a busy machine stands still, for what must come before its time."""
REDIS_TOO = ("unpaid_order", "saga", "timers", "rate_limit")


@pytest.mark.parametrize(
    ("example", "redis"),
    [*((example, False) for example in PROMISED), *((example, True) for example in REDIS_TOO)],
)
async def test_an_example_does_what_it_says(
    example: str, redis: bool, broker: BrokerProcess, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    environment = {"AMQP_URL": broker.url}
    if redis:
        environment["REDIS_URL"] = request.getfixturevalue("redis_url")
    program: str | Path = example
    if example in LONGER:
        text = (EXAMPLES / f"{example}.py").read_text()
        assert LONGER[example][0] in text
        program = tmp_path / f"{example}.py"
        program.write_text(text.replace(*LONGER[example]))
    ran = await asyncio.to_thread(run, program, **environment)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == PROMISED[example], ran.stderr
