"""A broker with the HTTP API, and clients of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.blocking_client import Channel, Connection
from tests.support.http_client import HttpApi
from tests.support.in_process_broker import PATIENCE, InProcessBroker
from warren.broker import BrokerConfig
from warren.broker.management.statistics.collector import Collector


@pytest.fixture
def served() -> Iterator[InProcessBroker]:
    """Run a broker with the HTTP API in this process, in memory."""
    config = BrokerConfig(management_port=0, handshake_timeout=PATIENCE, login_failure_delay=0)
    with InProcessBroker(config=config) as broker:
        yield broker


@pytest.fixture
def api(served: InProcessBroker) -> HttpApi:
    """Return a client of its HTTP API, as the user guest."""
    return HttpApi(base_url(served))


@pytest.fixture
def channel(served: InProcessBroker) -> Iterator[Channel]:
    """Return a channel to it."""
    with Connection(served.url) as connection:
        yield connection.channel()


def base_url(broker: InProcessBroker) -> str:
    """Return the URL of a broker's HTTP API."""
    assert broker.broker is not None
    return f"http://{broker.broker.management_addresses[0]}"


def collector_of(served: InProcessBroker) -> Collector:
    """Return the collector of a broker, which takes no samples by itself any more."""
    assert served.broker is not None
    collector = served.broker._collector
    assert collector is not None
    served.call(collector.stop)
    return collector
