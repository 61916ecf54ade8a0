"""Written scripts on both brokers."""

from __future__ import annotations

import pytest

from tests.conformance.differential_run import DifferentialRun
from tests.conformance.written_scripts import EXCHANGES, QUEUES, SCRIPTS
from tests.support.in_process_broker import InProcessBroker
from tests.support.rabbitmq import RabbitMQ

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", SCRIPTS)
def test_both_brokers_behave_the_same(rabbitmq: RabbitMQ, warren: InProcessBroker, name: str) -> None:
    run = DifferentialRun(rabbitmq.url, warren.url, QUEUES, EXCHANGES, warren.advance)
    try:
        run.play_all(SCRIPTS[name])
    finally:
        run.end()
