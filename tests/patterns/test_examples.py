"""The examples of the documentation run unchanged, except for some times, and print the expected output."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.example_programs import EXAMPLES, run

pytestmark = pytest.mark.slow

EXPECTED_OUTPUT = {
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


LONGER_TIMES = {
    "unpaid_order": ("timedelta(seconds=1)", "timedelta(seconds=10)"),
    "delay": ("timedelta(seconds=1)", "timedelta(seconds=10)"),
    "ladder": ("900ms", "10s"),
    "timers": ("timedelta(seconds=1)", "timedelta(seconds=10)"),
    "immediate": ('Immediate("bell")', 'Immediate("bell", timeout=60)'),
}
"""Replacements of times that a busy machine could exceed: the text in the example, and a longer time."""
ALSO_ON_REDIS = ("unpaid_order", "saga", "timers", "rate_limit")


@pytest.mark.parametrize(
    ("example", "redis"),
    [*((example, False) for example in EXPECTED_OUTPUT), *((example, True) for example in ALSO_ON_REDIS)],
)
async def test_an_example_prints_its_expected_output(
    example: str, redis: bool, broker: BrokerProcess, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    environment = {"AMQP_URL": broker.url}
    if redis:
        environment["REDIS_URL"] = request.getfixturevalue("redis_url")
    program: str | Path = example
    if example in LONGER_TIMES:
        text = (EXAMPLES / f"{example}.py").read_text()
        assert LONGER_TIMES[example][0] in text
        program = tmp_path / f"{example}.py"
        program.write_text(text.replace(*LONGER_TIMES[example]))
    completed = await asyncio.to_thread(run, program, **environment)
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout.splitlines() == EXPECTED_OUTPUT[example], completed.stderr
