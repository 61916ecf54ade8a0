"""Written scripts, played on both brokers."""

from __future__ import annotations

import pytest

from tests.conformance.duel import Duel
from tests.conformance.scripts import EXCHANGES, QUEUES, SCRIPTS
from tests.support.in_process_broker import InProcessBroker
from tests.support.rabbitmq import RabbitMQ

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", SCRIPTS)
def test_both_say_the_same(rabbitmq: RabbitMQ, warren: InProcessBroker, name: str) -> None:
    duel = Duel(rabbitmq.url, warren.url, QUEUES, EXCHANGES, warren.advance)
    try:
        duel.play_all(SCRIPTS[name])
    finally:
        duel.end()
