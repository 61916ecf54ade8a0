"""Both brokers: Debian's RabbitMQ, which judges, and Warren in the version that it follows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.in_process_broker import InProcessBroker
from warren.broker import BrokerConfig


@pytest.fixture(scope="session")
def warren() -> Iterator[InProcessBroker]:
    """A Warren that does as RabbitMQ 3.10 does."""
    with InProcessBroker(config=BrokerConfig(compat="3.10")) as broker:
        yield broker
