"""The servers that tests talk to: the broker under test, a private Redis, RabbitMQ."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.broker import BrokerProcess
from tests.support.rabbitmq import RabbitMQ, installed, rabbitmq_server
from tests.support.redis import redis_server


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--amqp-url",
        metavar="URL",
        default=None,
        help="run the tests that need a broker against this one (default: start `warren broker`)",
    )


@pytest.fixture(scope="session")
def amqp_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of the broker under test: `--amqp-url`, else that of a `warren broker` of this session."""
    given: str | None = request.config.getoption("--amqp-url")
    if given is not None:
        yield given
        return
    with BrokerProcess(tmp_path_factory.mktemp("broker")) as broker:
        yield broker.url


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A `warren broker` of one test, which may kill it and start it again."""
    with BrokerProcess(tmp_path / "broker") as process:
        yield process


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a private, empty redis-server that lives as long as the session."""
    with redis_server(tmp_path_factory.mktemp("redis")) as url:
        yield url


@pytest.fixture(scope="session")
def rabbitmq() -> Iterator[RabbitMQ]:
    """Debian's RabbitMQ, private, as long as the session lasts; skips where it is not installed."""
    if not installed():
        pytest.skip("rabbitmq-server is not installed")
    with rabbitmq_server() as server:
        yield server
