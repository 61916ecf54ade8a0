"""Both brokers: Debian's RabbitMQ, which judges, and Warren in the version that it follows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.inprocess import InProcess
from warren.broker import BrokerConfig


@pytest.fixture(scope="session")
def warren() -> Iterator[InProcess]:
    """A Warren that does as RabbitMQ 3.10 does."""
    with InProcess(config=BrokerConfig(compat="3.10")) as broker:
        yield broker
