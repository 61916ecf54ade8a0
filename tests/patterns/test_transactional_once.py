"""TransactionalOnce without a broker, on both databases: claim and work are committed together or not at all."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.pool import AsyncAdaptedQueuePool

from tests.patterns.faults.skewed_clock import SkewedClock
from tests.patterns.slow_sqlite import SlowSqlite
from tests.patterns.sql_sessions import Sessions, open_sessions, sqlite_url
from tests.patterns.test_once import delivery
from tests.support.processes import closed_port
from warren.core.errors import UsageError
from warren.patterns import NaturallyIdempotent, StoreUnavailable, TransactionalOnce, current_session
from warren.patterns.idempotency import transactional_once
from warren.sdk import ConfigError, DeadLetter


@pytest.fixture
async def sessions(sessions: Sessions) -> Sessions:
    """Return the session factory of a database with a table for the effects of handlers."""
    async with sessions.begin() as session:
        await session.execute(text("CREATE TABLE effects (what text)"))
    return sessions


async def effect(what: str = "charged") -> bytes:
    await current_session().execute(text("INSERT INTO effects VALUES (:what)"), {"what": what})
    return b'"receipt"'


async def effects(sessions: Sessions) -> list[str]:
    async with sessions() as session:
        return list((await session.execute(text("SELECT what FROM effects"))).scalars())


async def test_a_duplicate_gets_the_first_result_and_writes_nothing(sessions: Sessions) -> None:
    first, other_process = TransactionalOnce(sessions), TransactionalOnce(sessions)
    assert await first.run(None, delivery(), effect) == b'"receipt"'
    assert await other_process.run(None, delivery(), effect) == b'"receipt"'
    assert await effects(sessions) == ["charged"]
    assert (first.statistics.run, other_process.statistics.duplicates) == (1, 1)


async def test_concurrent_duplicates_wait_for_the_first(sessions: Sessions) -> None:
    onces = [TransactionalOnce(sessions), TransactionalOnce(sessions)]
    results = await asyncio.gather(*(onces[n % 2].run(None, delivery(), effect) for n in range(6)))
    assert set(results) == {b'"receipt"'}
    assert await effects(sessions) == ["charged"]


async def test_a_handler_that_raises_rolls_back_its_writes_and_its_claim(sessions: Sessions) -> None:
    once = TransactionalOnce(sessions)

    async def fail() -> bytes:
        await effect("half")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await once.run(None, delivery(), fail)
    assert await effects(sessions) == []
    assert await once.run(None, delivery(), effect) == b'"receipt"'
    assert once.statistics.failed == 1


async def test_a_cancelled_handler_rolls_back_its_writes(sessions: Sessions) -> None:
    once = TransactionalOnce(sessions)
    began = asyncio.Event()

    async def hang() -> bytes:
        await effect("half")
        began.set()
        await asyncio.Event().wait()
        return b""

    running = asyncio.ensure_future(once.run(None, delivery(), hang))
    await began.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await once.run(None, delivery(), effect)
    assert await effects(sessions) == ["charged"]


async def test_a_connection_that_opens_while_the_handler_is_cancelled_is_closed(tmp_path: Path) -> None:
    async def nothing() -> bytes:
        return b"1"

    database = SlowSqlite(tmp_path)
    database.may_open.set()
    once = TransactionalOnce(async_sessionmaker(database.engine))
    await once.run(None, delivery("first"), nothing)
    for event in (database.opening, database.may_open, database.opened):
        event.clear()
    running = asyncio.ensure_future(once.run(None, delivery("second"), nothing))
    await asyncio.to_thread(database.opening.wait)
    running.cancel()
    # A turn of the event loop, in which the cancellation arrives.
    await asyncio.sleep(0)
    database.may_open.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    await asyncio.to_thread(database.opened.wait)
    await database.engine.dispose()
    assert database.unclosed == []


async def test_expired_keys_are_deleted_and_their_messages_handled_again(sessions: Sessions) -> None:
    now = TransactionalOnce(sessions, keep=timedelta(hours=1))
    later = TransactionalOnce(sessions, keep=timedelta(hours=1), clock=SkewedClock(3601))
    await now.run(None, delivery("a"), effect)
    await now.run(None, delivery("b"), effect)
    await later.run(None, delivery("a"), effect)
    assert await effects(sessions) == ["charged"] * 3
    async with sessions() as session:
        assert len((await session.execute(later.table.select())).all()) == 1


async def test_expired_keys_are_deleted_in_several_sweeps(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactional_once, "SWEEP_ROWS", 2)
    clock = SkewedClock(0)
    once = TransactionalOnce(sessions, keep=timedelta(hours=1), clock=clock)
    await once.run(None, delivery("first"), effect)
    async with sessions.begin() as session:
        old = [{"key": b"old%d" % n, "result": b"null", "keep_until_ms": 0} for n in range(5)]
        await session.execute(once.table.insert(), old)
    later = TransactionalOnce(sessions, keep=timedelta(hours=1), clock=clock)
    for n in range(3):
        await later.run(None, delivery(f"new{n}"), effect)
    async with sessions() as session:
        kept = (await session.execute(once.table.select())).all()
    assert not [row for row in kept if row.key.startswith(b"old")]


async def test_a_dropped_table_is_created_again(sessions: Sessions) -> None:
    once = TransactionalOnce(sessions)
    await once.run(None, delivery("a"), effect)
    async with sessions.begin() as session:
        await session.execute(text("DROP TABLE warren_once"))
    await once.run(None, delivery("b"), effect)
    await once.run(None, delivery("b"), effect)
    assert await effects(sessions) == ["charged", "charged"]


async def test_the_table_is_created_in_each_database(tmp_path: Path) -> None:
    """The session factory of an application's tests is bound to one database after the other."""
    sessions: Sessions = async_sessionmaker()
    once = TransactionalOnce(sessions)

    async def nothing() -> bytes:
        return b"null"

    for name in ("first", "second"):
        engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/{name}.sqlite")
        sessions.configure(bind=engine)
        await once.run(None, delivery(), nothing)
        await engine.dispose()
    assert once.statistics.run == 2


async def test_a_pool_of_one_connection_is_enough(tmp_path: Path) -> None:
    pool = {"poolclass": AsyncAdaptedQueuePool, "pool_size": 1, "max_overflow": 0, "pool_timeout": 1}
    engine = create_async_engine(sqlite_url(tmp_path), **pool)
    once = TransactionalOnce(async_sessionmaker(engine))

    async def nothing() -> bytes:
        return b"null"

    for key in ("a", "b", "a"):
        await once.run(None, delivery(key), nothing)
    await engine.dispose()
    assert (once.statistics.run, once.statistics.duplicates) == (2, 1)


async def test_an_engine_in_autocommit_gets_a_transaction(sessions: Sessions) -> None:
    engine = sessions.kw["bind"].execution_options(isolation_level="AUTOCOMMIT")
    once = TransactionalOnce(async_sessionmaker(engine))

    async def fail() -> bytes:
        await effect()
        raise RuntimeError

    with pytest.raises(RuntimeError):
        await once.run(None, delivery(), fail)
    assert await effects(sessions) == []
    await once.run(None, delivery(), effect)
    assert await effects(sessions) == ["charged"]


async def test_serializable_duplicates_wait_for_the_first(sessions: Sessions) -> None:
    engine = sessions.kw["bind"].execution_options(isolation_level="SERIALIZABLE")
    once = TransactionalOnce(async_sessionmaker(engine))
    results = await asyncio.gather(*(once.run(None, delivery(), effect) for _ in range(6)))
    assert set(results) == {b'"receipt"'}
    assert await effects(sessions) == ["charged"]


async def test_an_unavailable_database_raises_an_error_when_the_patience_ends() -> None:
    with closed_port() as port:
        async with open_sessions(f"postgresql://warren@127.0.0.1:{port}/postgres") as sessions:
            once = TransactionalOnce(sessions, patience=timedelta(milliseconds=50))
            with pytest.raises(StoreUnavailable, match="database did not answer to a claim"):
                await once.run(None, delivery(), effect)


async def test_invalid_use_raises_errors(sessions: Sessions, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="no handler under TransactionalOnce is running"):
        current_session()
    with pytest.raises(ConfigError, match="at least 1 ms"):
        TransactionalOnce(sessions, keep=timedelta(0))
    with pytest.raises(DeadLetter, match="no message_id"):
        await TransactionalOnce(sessions).run(None, delivery(None), effect)
    monkeypatch.setattr("warren.patterns.optional_packages.find_spec", lambda _: None)
    with pytest.raises(UsageError, match=r"pip install 'warrenmq\[sql\]'"):
        TransactionalOnce(sessions)


async def test_a_naturally_idempotent_handler_runs_for_each_delivery() -> None:
    runs = []

    async def handler() -> bytes:
        runs.append(1)
        return b"1"

    assert [await NaturallyIdempotent.run(None, delivery(), handler) for _ in range(2)] == [b"1", b"1"]
    assert len(runs) == 2
