"""Fixtures: Warren in the version that follows RabbitMQ 3.10."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.in_process_broker import InProcessBroker
from warren.broker import BrokerConfig


@pytest.fixture(scope="session")
def warren() -> Iterator[InProcessBroker]:
    """Run a Warren broker that behaves like RabbitMQ 3.10."""
    with InProcessBroker(config=BrokerConfig(compat="3.10")) as broker:
        yield broker
