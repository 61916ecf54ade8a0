"""Fixtures of the fault matrices: one host of workers, one broker that may be killed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.postgres import PostgreSQL
from tests.support.worker_processes import Workers, worker_host


@pytest.fixture(scope="session")
def host() -> Iterator[Path]:
    imported = (
        "warren.patterns",
        "warren.sdk",
        "aio_pika",
        "asyncpg",
        "redis.asyncio",
        "tests.patterns.sql_sessions",
    )
    with worker_host(*imported) as socket:
        yield socket


@pytest.fixture
async def workers(host: Path) -> AsyncIterator[Workers]:
    """Run functions of the test module in worker processes and read their reports; kill the rest afterwards."""
    async with Workers(host) as workers:
        yield workers


@pytest.fixture(scope="session")
def _mortal_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("mortal")) as broker:
        yield broker


@pytest.fixture
def mortal_broker(_mortal_broker: BrokerProcess) -> Iterator[BrokerProcess]:
    """Return a `warren broker` that all matrices share and each may kill; restart it after the test if needed."""
    yield _mortal_broker
    if _mortal_broker.child is None:
        _mortal_broker.start()


@pytest.fixture
def database(mortal_postgres: PostgreSQL) -> str:
    """Return the URL of a PostgreSQL."""
    return mortal_postgres.url
