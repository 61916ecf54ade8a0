"""Plans of all SQL statements of Outbox, TransactionalOnce and the stores, in tables with a million rows: none of them
reads a whole table, or takes a step for each pair of rows."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import pytest
from sqlalchemy import text

from tests.patterns.sql_plans import Recorder, postgres_faults, recording, sqlite_faults
from tests.patterns.sql_sessions import Sessions, open_sessions, sqlite_url
from tests.support.polling import eventually
from warren.broker import Broker
from warren.patterns import ListingStore, Outbox, PostgresStore, SqliteStore, TransactionalOnce
from warren.patterns.idempotency.transactional_once import SWEEP_ROWS
from warren.patterns.outbox import relay as relay_module
from warren.patterns.outbox.inspection import OutboxInspection, WaitingState
from warren.patterns.stores import postgres_store, sqlite_store
from warren.patterns.stores.request_batching import BATCH
from warren.sdk import App, Event, Request

pytestmark = pytest.mark.slow

ROWS = 1_000_000


class Shipped(Event, exchange="parcels", key="shipped"):
    n: int


class Pay(Request[int], queue="payments"):
    n: int


@dataclass
class Database:
    """Database whose tables are filled.

    :ivar url: URL of the PostgreSQL.
    :ivar schema: schema of the test in PostgreSQL.
    :ivar path: file of the SQLite database; None for PostgreSQL.
    """

    sessions: Sessions
    url: str = ""
    schema: str = ""
    path: Path | None = None

    async def fill(self, insert: str) -> None:
        """Insert rows for the numbers 1 to `ROWS`, which the statement reads as the column `n` of `numbers`."""
        if self.path is None:
            insert = insert.replace("numbers", f"generate_series(1, {ROWS}) n")
        elif "numbers" in insert:
            count = f"SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {ROWS}"
            insert = f"WITH RECURSIVE numbers (n) AS ({count}) {insert}"
        async with self.sessions.begin() as session:
            await session.execute(text(insert))
            await session.execute(text("ANALYZE"))

    async def faults(self, recorder: Recorder, *tables: str) -> list[str]:
        """Return the recorded statements whose plan reads the whole of one of the tables."""
        if self.path is not None:
            with closing(sqlite3.connect(self.path)) as database:
                return sqlite_faults(database, recorder, tables)
        connection = await asyncpg.connect(self.url, server_settings={"search_path": self.schema})
        try:
            return await postgres_faults(connection.fetch, recorder, tables)
        finally:
            await connection.close()


@pytest.fixture(params=["postgres", "sqlite"])
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Database]:
    if request.param == "sqlite":
        async with open_sessions(sqlite_url(tmp_path)) as sessions:
            yield Database(sessions, path=tmp_path / "work.sqlite")
        return
    url, schema = request.getfixturevalue("postgres_url"), f"t{uuid4().hex}"
    async with open_sessions(url, schema) as sessions:
        yield Database(sessions, url, schema)
        async with sessions.begin() as session:
            await session.execute(text(f"DROP SCHEMA {schema} CASCADE"))


MESSAGES = """
INSERT INTO warren_outbox (exchange, routing_key, ordered_by, properties, body, added_ms)
SELECT exchange, routing_key, CASE WHEN n % 2 = 0 THEN 'order ' || n END, properties, body, added_ms
FROM warren_outbox, numbers
"""
REFUSALS = """
INSERT INTO warren_outbox_refused (id, ordered_by, attempts, error, refused_ms, retry_ms, requested)
SELECT id, ordered_by, 1, 'no exchange', 0, 0, 0 FROM warren_outbox
"""


async def test_no_statement_of_the_outbox_reads_a_whole_table(
    database: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sessions = database.sessions
    caplog.set_level(logging.CRITICAL, "warren")  # Thousands of messages are refused, each with a line.
    # More messages are refused than have a retry time in memory.
    monkeypatch.setattr(relay_module, "MAX_RETRY_TIMES", 700)
    async with Broker() as broker:

        def service() -> tuple[App, Outbox]:
            app = App(broker.url)
            outbox = Outbox(sessions, poll=timedelta(milliseconds=10), retry_after=timedelta(hours=1))
            app.include(outbox)
            return app, outbox

        app, outbox = service()
        async with app:
            await eventually(lambda: outbox.statistics.relaying, "the tables are created")
        async with sessions.begin() as session:
            await outbox.add(session, Shipped(n=0))
        await database.fill(MESSAGES)
        await database.fill(REFUSALS)
        inspected = OutboxInspection(sessions, "warren_outbox")
        with recording(sessions) as recorder:
            app, outbox = service()
            async with app:
                # Their exchange is missing.
                await eventually(lambda: outbox.statistics.failed >= 3000, "messages are refused")
                await inspected.open()
                assert await inspected.retry(2) == 1
                assert await inspected.skip(3)
                await eventually(lambda: outbox.statistics.failed >= 6000, "more messages are refused")
            app, outbox = service()
            app.publishes(Shipped)
            async with app:
                await eventually(lambda: outbox.statistics.relayed >= 2000, "messages are published")
                await outbox.lag()
            async with sessions.begin() as session:
                await outbox.add(session, Shipped(n=0), ordered_by=f"order {ROWS}")
            listed, number = await inspected.messages(1200)
            assert [message.state for message in listed] == [WaitingState.REFUSED] * 1200
            assert ROWS - 100_000 < number < ROWS
            last = await inspected.message(ROWS + 2)
            assert last is not None
            assert last.state is WaitingState.HELD_BACK
            assert await inspected.retry(None) == number - 1
            await use_tables(outbox)
        recorder.check_sizes()
        assert len(recorder.statements) > 20
        assert await database.faults(recorder, "warren_outbox", "warren_outbox_refused") == []


async def use_tables(outbox: Outbox) -> None:
    """Read messages as a relay does after a million of them were refused, of which it remembers the last."""
    excluded = [f"order {n}" for n in range(ROWS - 40_000, ROWS - 20_000, 2)]
    tables = outbox._tables
    page = await tables.pending(500, excluded_keys=excluded, excluded_ids=range(10_000), after=ROWS - 50_000)
    assert len(page.rows) == 500
    page = await tables.pending(500, excluded_keys=excluded, excluded_ids=range(10_000))
    assert len(page.rows) == 500


async def test_no_statement_of_transactional_once_reads_a_whole_table(database: Database) -> None:
    once = TransactionalOnce(database.sessions)
    async with Broker() as broker:
        app = App(broker.url)

        @app.handle(Pay, once=once)
        async def pay(command: Pay) -> int:
            return command.n

        async with app:
            await app.call(Pay(n=0))
            key = "CAST('key ' || n AS BLOB)" if database.path else "convert_to('key ' || n, 'UTF8')"
            await database.fill(
                f"INSERT INTO warren_once (key, result, keep_until_ms)"
                f" SELECT {key}, result, CASE WHEN n % 2 = 0 THEN 0 ELSE keep_until_ms END FROM warren_once, numbers"
            )
            once._swept_ms = 0
            with recording(database.sessions) as recorder:
                for n in range(3):
                    await app.call(Pay(n=n))
                await app.publish(Pay(n=3), message_id="twice")
                await app.publish(Pay(n=3), message_id="twice")
                await eventually(lambda: once.statistics.duplicates == 1, "a duplicate is recognised")
    async with database.sessions() as session:
        left = (await session.execute(text("SELECT count(*) FROM warren_once"))).scalar_one()
    assert left < ROWS - SWEEP_ROWS
    recorder.check_sizes()
    assert len(recorder.statements) >= 4
    assert await database.faults(recorder, "warren_once") == []


async def use_store(store: ListingStore) -> None:
    """Use a store with a million other records as its patterns do, and list some."""
    await asyncio.gather(
        *(store.compare_and_set(f"b:{n:04}", None, b"1", keep_ms=3_600_000) for n in range(2500))
    )
    await asyncio.gather(
        *(store.compare_and_set(f"b:{n:04}", b"1", b"2", keep_ms=3_600_000) for n in range(2400))
    )
    assert (await store.compare_and_set("b:2400", b"1", None, keep_ms=1)).swapped
    listed = [key async for key, _ in store.records("b:")]
    assert listed == [f"b:{n:04}" for n in range(2500) if n != 2400]


async def test_no_statement_of_the_postgres_store_reads_a_whole_table(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, recorder, connect = f"t{uuid4().hex}", Recorder(), asyncpg.connect

    async def recorded(*arguments: Any, **options: Any) -> Any:
        connection = await connect(*arguments, **options)
        connection.add_query_logger(lambda query: recorder.add(query.query, query.args))
        return connection

    async with PostgresStore(postgres_url, table=table, timeout=60) as store:
        assert (await store.compare_and_set("first", None, b"1", keep_ms=1000)).swapped
    connection = await asyncpg.connect(postgres_url)
    try:
        await connection.execute(
            f"INSERT INTO {table} SELECT convert_to(CASE WHEN n % 2 = 0 THEN 'a:' ELSE 'c:' END || n, 'UTF8'),"
            f" convert_to('record ' || n, 'UTF8'), now() + (n - {ROWS // 2}) * interval '1 minute'"
            f" FROM generate_series(1, {ROWS}) n; ANALYZE {table}",
            timeout=120,
        )
        monkeypatch.setattr(asyncpg, "connect", recorded)
        monkeypatch.setattr(postgres_store, "SWEEP_SECONDS", 0)
        async with PostgresStore(postgres_url, table=table, timeout=60) as store:
            await use_store(store)
        assert len(recorder.statements) >= 5
        assert max(recorder.largest_parameters()) <= BATCH
        assert await postgres_faults(connection.fetch, recorder, [table]) == []
        assert await connection.fetchval(f"SELECT count(*) FROM {table}") <= ROWS - postgres_store.SWEEP_ROWS
    finally:
        await connection.execute(f"DROP TABLE {table}")
        await connection.close()


async def test_no_statement_of_the_sqlite_store_reads_a_whole_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, recorder, connect = tmp_path / "records.sqlite", Recorder(), sqlite3.connect

    def recorded(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*arguments, **options)
        connection.set_trace_callback(lambda statement: recorder.add(statement, ()))
        return connection

    async with SqliteStore(path, timeout=60) as store:
        assert (await store.compare_and_set("first", None, b"1", keep_ms=1000)).swapped
    with closing(connect(path)) as database, database:
        database.execute(
            f"WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {ROWS})"
            " INSERT INTO records SELECT CASE WHEN n % 2 = 0 THEN 'a:' ELSE 'c:' END || n,"
            f" CAST('record ' || n AS BLOB), unixepoch() + (n - {ROWS // 2}) * 60 FROM numbers"
        )
        database.execute("ANALYZE")
    monkeypatch.setattr(sqlite3, "connect", recorded)
    async with SqliteStore(path, timeout=60) as store:
        await use_store(store)
    monkeypatch.undo()
    with closing(connect(path)) as database:
        assert len(recorder.statements) >= 5
        assert sqlite_faults(database, recorder, ["records"]) == []
        assert (
            database.execute("SELECT count(*) FROM records").fetchone()[0] <= ROWS - sqlite_store.SWEEP_ROWS
        )
