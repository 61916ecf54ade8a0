"""What a message may cost the broker: processor time in the build that the tests run on, and what it costs RabbitMQ.

16 B, confirmed in a window of 1,000 and acknowledged: at most 16 µs of user and system time in plain Python and 5 compiled,
persistent 2 more. Medians of three short runs; `make bench` measures at length.
"""

from __future__ import annotations

import sys

from benchmarks.comparison.loads import measure
from benchmarks.comparison.results import Median, Sample
from benchmarks.comparison.rows import CONFIRMED, PERSISTENT, Row
from tests.support.broker import BrokerProcess
from tests.support.rabbitmq import RabbitMQ
from warren.wire import content

RUNS = 3
SECONDS = 1.0
COMPILED = content.__file__.endswith(".so")
BUDGET_US = 5.0 if COMPILED else 16.0
PERSISTENT_US = 2.0


def sample(server: BrokerProcess | RabbitMQ, row: Row) -> Sample:
    return measure(sys.executable, server.url, server.pid, row, SECONDS)


def microseconds(broker: BrokerProcess, row: Row) -> float:
    return Median.of([sample(broker, row).microseconds for _ in range(RUNS)]).middle


def test_a_transient_message_stays_within_its_budget(broker: BrokerProcess) -> None:
    assert microseconds(broker, CONFIRMED) <= BUDGET_US


def test_a_persistent_message_stays_within_its_budget(broker: BrokerProcess) -> None:
    assert microseconds(broker, PERSISTENT) <= BUDGET_US + PERSISTENT_US


def test_a_message_costs_less_than_rabbitmqs(broker: BrokerProcess, rabbitmq: RabbitMQ) -> None:
    ours = Median.of([sample(broker, CONFIRMED).microseconds for _ in range(RUNS)])
    theirs = Median.of([sample(rabbitmq, CONFIRMED).microseconds for _ in range(RUNS)])
    assert ours.middle < theirs.middle, f"Warren {ours:.1f} µs, RabbitMQ {theirs:.1f} µs"
