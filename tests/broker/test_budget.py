"""What a message may cost the broker: processor time in the build that the tests run on, and what it costs RabbitMQ.

16 B, confirmed in a window of 1,000 and acknowledged: at most 16 µs of user and system time in plain Python and 5 compiled,
persistent 2 more. Medians of three short runs; `make bench` measures at length.
"""

from __future__ import annotations

import sys

import pytest

from benchmarks.comparison.loads import measure
from benchmarks.comparison.results import Median
from benchmarks.comparison.rows import CONFIRMED, PERSISTENT, Row
from tests.support.broker import BrokerProcess
from tests.support.rabbitmq import RabbitMQ
from warren.wire import content

RUNS = 3
SECONDS = 0.5
COMPILED = content.__file__.endswith(".so")
BUDGET_US = 5.0 if COMPILED else 16.0
PERSISTENT_US = 2.0


def microseconds(server: BrokerProcess | RabbitMQ, row: Row) -> float:
    samples = [
        measure(sys.executable, server.url, server.pid, row, SECONDS, warmup=SECONDS) for _ in range(RUNS)
    ]
    return Median.of([sample.microseconds for sample in samples]).middle


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> float:
    with BrokerProcess(tmp_path_factory.mktemp("budget")) as broker:
        return microseconds(broker, CONFIRMED)


def test_a_transient_message_stays_within_its_budget(ours: float) -> None:
    assert ours <= BUDGET_US


def test_a_message_costs_less_than_rabbitmqs(ours: float, rabbitmq: RabbitMQ) -> None:
    assert ours < microseconds(rabbitmq, CONFIRMED)


def test_a_persistent_message_stays_within_its_budget(broker: BrokerProcess) -> None:
    assert microseconds(broker, PERSISTENT) <= BUDGET_US + PERSISTENT_US
