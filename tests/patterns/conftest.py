"""Fixtures of the pattern tests: stores that can be opened again, as after a restart, and Apps on the broker under test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Protocol
from uuid import uuid4

import pytest

from tests.patterns.sql_sessions import Sessions, open_sessions, sqlite_url
from tests.patterns.topology_cleanup import delete_topology
from tests.support.postgres import PostgreSQL, postgres_server
from warren.patterns import ListingStore, PostgresStore, RedisStore, SqliteStore
from warren.patterns.dead_letters import parking_lot
from warren.sdk import App

OpenStore = Callable[[], ListingStore]
PATIENCE = 60.0
"""Timeout, in seconds, for an answer of an available store: a busy machine may pause for longer than the default of 5 s."""


class NewApp(Protocol):
    def __call__(self, url: str = ...) -> App: ...


@pytest.fixture(autouse=True)
def _patient_browsing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the parking lot enough time for the broker's answers, and for requeueing what was read, on a slow machine."""
    monkeypatch.setattr(parking_lot, "ANSWER_SECONDS", PATIENCE)


@pytest.fixture(params=["redis", "sqlite", "postgres"])
async def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[OpenStore]:
    """Return a function that opens the test's own store; each call opens the same one, as another process would."""
    opened: list[ListingStore] = []
    if request.param == "redis":
        url: str = request.getfixturevalue("redis_url")
        prefix = f"{uuid4().hex}:"

        def open_one() -> ListingStore:
            opened.append(RedisStore(url, prefix=prefix, timeout=PATIENCE))
            return opened[-1]
    elif request.param == "postgres":
        database: str = request.getfixturevalue("postgres_url")
        table = f"t{uuid4().hex}"

        def open_one() -> ListingStore:
            opened.append(PostgresStore(database, table=table, timeout=PATIENCE))
            return opened[-1]
    else:

        def open_one() -> ListingStore:
            opened.append(SqliteStore(tmp_path / "decisions.sqlite", timeout=PATIENCE))
            return opened[-1]

    yield open_one
    for store in opened:
        await store.close()


@pytest.fixture(params=["postgres", "sqlite"])
async def sessions(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Sessions]:
    """Yield a session factory on a database of the test's own."""
    if request.param == "postgres":
        opening = open_sessions(request.getfixturevalue("postgres_url"), f"t{uuid4().hex}")
    else:
        opening = open_sessions(sqlite_url(tmp_path))
    async with opening as opened:
        yield opened


@pytest.fixture
async def one_store(redis_url: str) -> AsyncIterator[ListingStore]:
    """Return a store for tests that do not depend on its type; patterns use all stores through the same rules."""
    async with RedisStore(redis_url, prefix=f"{uuid4().hex}:", timeout=PATIENCE) as store:
        yield store


@pytest.fixture
def store(open_store: OpenStore) -> ListingStore:
    return open_store()


@pytest.fixture
def name() -> str:
    """Return a prefix for all names that the test declares, so that tests may share a broker."""
    return f"t{uuid4().hex[:12]}"


@pytest.fixture
async def new_app(amqp_url: str, name: str) -> AsyncIterator[NewApp]:
    """Return a function that makes Apps on the broker under test or on another URL; delete their topology afterwards."""
    apps: list[App] = []

    def new(url: str = amqp_url) -> App:
        apps.append(App(url))
        return apps[-1]

    yield new
    await delete_topology(amqp_url, apps, name)


@pytest.fixture(scope="session")
def _mortal_postgres() -> Iterator[PostgreSQL]:
    with postgres_server() as server:
        yield server


@pytest.fixture
def mortal_postgres(_mortal_postgres: PostgreSQL) -> Iterator[PostgreSQL]:
    """Return a PostgreSQL that tests share and each may stop or crash; restart it after the test if needed."""
    yield _mortal_postgres
    if not _mortal_postgres.running:
        _mortal_postgres.start()
