"""Fixtures: Warren in the version that follows the RabbitMQ that it is compared with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.in_process_broker import InProcessBroker
from warren.broker import BrokerConfig


@pytest.fixture(scope="session")
def warren(request: pytest.FixtureRequest) -> Iterator[InProcessBroker]:
    """Run a Warren broker that behaves like the RabbitMQ of the version `--compat`, and refuses what 4.3 refuses."""
    compat: str = request.config.getoption("--compat")
    with InProcessBroker(config=BrokerConfig(compat=compat, strict=compat == "4.3")) as broker:
        yield broker
