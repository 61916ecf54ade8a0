"""Outbox in the caller's transaction: one connection, missing tables, savepoints, rollbacks, autocommit, isolation."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.pool import AsyncAdaptedQueuePool

from tests.patterns.sql_sessions import Sessions, asyncpg_url, sqlite_url
from tests.support.polling import eventually
from warren.broker import Broker
from warren.patterns import Outbox
from warren.sdk import App, ConfigError, Event
from warren.testing import Warren

TABLES = ("warren_outbox", "warren_outbox_relay", "warren_outbox_refused")


class Placed(Event, exchange="orders", key="order.placed", audience=["audit"]):
    how: str


class Database:
    """Database of one test, on which a test opens engines with options of its own."""

    def __init__(self, url: str, schema: str | None) -> None:
        self.is_sqlite = schema is None
        self._url = url
        self._schema = schema

    @asynccontextmanager
    async def sessions(self, **options: Any) -> AsyncIterator[Sessions]:
        if self._schema is not None:
            options["connect_args"] = {"server_settings": {"search_path": self._schema}}
        engine = create_async_engine(self._url, poolclass=AsyncAdaptedQueuePool, **options)
        try:
            yield async_sessionmaker(engine)
        finally:
            await engine.dispose()


@asynccontextmanager
async def postgres_schema(url: str) -> AsyncIterator[Database]:
    """Yield a schema of the test's own in PostgreSQL."""
    schema = f"t{uuid4().hex}"
    database = Database(asyncpg_url(url), schema)
    async with database.sessions() as sessions:
        async with sessions.begin() as session:
            await session.execute(text(f"CREATE SCHEMA {schema}"))
        yield database
        async with sessions.begin() as session:
            await session.execute(text(f"DROP SCHEMA {schema} CASCADE"))


@pytest.fixture
async def postgres(postgres_url: str) -> AsyncIterator[Database]:
    async with postgres_schema(postgres_url) as database:
        yield database


@pytest.fixture(params=["postgres", "sqlite"])
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Database]:
    if request.param == "sqlite":
        yield Database(sqlite_url(tmp_path), None)
    else:
        async with postgres_schema(request.getfixturevalue("postgres_url")) as database:
            yield database


class Shop:
    """App with an outbox whose relay learns of messages only from the commits of this process."""

    def __init__(self, sessions: Sessions, url: str | None = None) -> None:
        self.sessions = sessions
        self.app = App(url)
        self.outbox = Outbox(sessions, poll=timedelta(hours=1), lease=timedelta(hours=3))
        self.app.include(self.outbox)
        self.app.publishes(Placed)
        self.received: list[str] = []

        @self.app.handle(Placed, queue="audit")
        async def audit(event: Placed) -> None:
            self.received.append(event.how)

    async def add(self, session: AsyncSession, how: str) -> None:
        await self.outbox.add(session, Placed(how=how))

    async def commit(self, how: str) -> None:
        async with self.sessions.begin() as session:
            await self.add(session, how)


async def count(sessions: Sessions) -> int:
    async with sessions() as session:
        return int((await session.execute(text("SELECT count(*) FROM warren_outbox"))).scalar_one())


async def drop_tables(sessions: Sessions) -> None:
    async with sessions.begin() as session:
        for table in TABLES:
            await session.execute(text(f"DROP TABLE IF EXISTS {table}"))


@pytest.mark.parametrize("exists", [False, True])
async def test_a_first_message_needs_no_second_connection(database: Database, exists: bool) -> None:
    async with database.sessions(pool_size=1, max_overflow=0, pool_timeout=1) as sessions:
        if exists:
            await Shop(sessions).commit("before")
        shop = Shop(sessions)
        async with sessions.begin() as session:
            await session.execute(text("SELECT 1"))
            await shop.add(session, "first")
        assert await count(sessions) == 1 + exists


async def test_any_number_of_transactions_add_first_messages(database: Database) -> None:
    async with database.sessions(pool_size=5, max_overflow=0) as sessions:
        shop = Shop(sessions)
        async with asyncio.TaskGroup() as tasks:
            for n in range(20):
                tasks.create_task(shop.commit(str(n)))
        assert await count(sessions) == 20


async def test_a_rollback_undoes_the_creation_of_the_table(database: Database) -> None:
    async with database.sessions() as sessions:
        shop = Shop(sessions)
        async with sessions() as session:
            await shop.add(session, "rolled back")
            await shop.add(session, "rolled back")
            await session.rollback()
            # The session is used again.
            await shop.add(session, "committed")
            await session.commit()
        assert await count(sessions) == 1


async def test_a_rolled_back_savepoint_undoes_the_creation_of_the_table(database: Database) -> None:
    async with database.sessions() as sessions:
        shop = Shop(sessions)
        async with sessions.begin() as session:
            await begin(session)
            savepoint = await session.begin_nested()
            await shop.add(session, "rolled back")
            await savepoint.rollback()
            await shop.add(session, "committed")
        await shop.commit("committed")
        assert await count(sessions) == 2


async def test_a_failed_statement_leaves_a_session_that_adds_messages_after_its_rollback(
    warren: Warren, database: Database
) -> None:
    async with database.sessions() as sessions:
        shop = Shop(sessions)
        async with warren.running(shop.app), sessions() as session:
            await shop.add(session, "before the error")
            with pytest.raises(DBAPIError):
                await session.execute(text("SELECT * FROM no_such_table"))
            await session.rollback()
            await warren.settle()
            await shop.add(session, "after the error")
            await session.commit()
            await warren.settle()
        assert shop.received == ["after the error"]


async def begin(session: AsyncSession) -> None:
    """Begin a transaction in the database: SQLite's driver does so at the first write."""
    await session.execute(text("CREATE TABLE IF NOT EXISTS orders (n int)"))
    await session.execute(text("INSERT INTO orders VALUES (1)"))


async def test_a_message_of_a_savepoint_is_published_at_the_commit(
    warren: Warren, database: Database
) -> None:
    async with database.sessions() as sessions:
        shop = Shop(sessions)
        async with warren.running(shop.app):
            await warren.settle()
            async with sessions.begin() as session:
                await begin(session)
                async with session.begin_nested():
                    await shop.add(session, "one savepoint")
                    async with session.begin_nested():
                        await shop.add(session, "two savepoints")
                await warren.settle()
                assert shop.received == []
            await warren.settle()
        assert shop.received == ["one savepoint", "two savepoints"]


async def test_a_message_before_a_savepoint_is_published_at_the_commit(
    warren: Warren, database: Database
) -> None:
    async with database.sessions() as sessions:
        shop = Shop(sessions)
        async with warren.running(shop.app):
            await warren.settle()
            async with sessions.begin() as session:
                await begin(session)
                await shop.add(session, "before")
                async with session.begin_nested():
                    pass
                await warren.settle()
                assert shop.received == []
            await warren.settle()
            assert shop.received == ["before"]


async def test_a_rolled_back_savepoint_takes_only_its_own_messages(
    warren: Warren, database: Database
) -> None:
    async with database.sessions() as sessions:
        shop = Shop(sessions)
        async with warren.running(shop.app):
            await warren.settle()
            async with sessions.begin() as session:
                await begin(session)
                await shop.add(session, "before")
                savepoint = await session.begin_nested()
                await shop.add(session, "inside")
                await savepoint.rollback()
                await warren.settle()
            await warren.settle()
            assert shop.received == ["before"]


async def test_a_message_that_is_added_before_the_start_is_published_at_the_commit(
    warren: Warren, database: Database
) -> None:
    async with database.sessions() as sessions:
        shop = Shop(sessions)
        await shop.commit("before")
        async with sessions() as session:
            if not database.is_sqlite:  # The relay of SQLite could not take its lease meanwhile.
                await shop.add(session, "during the start")
            async with warren.running(shop.app):
                await warren.settle()
                assert shop.received == ["before"]
                if database.is_sqlite:
                    await shop.add(session, "during the start")
                await session.commit()
                await warren.settle()
        assert shop.received == ["before", "during the start"]


async def test_a_message_of_a_session_within_an_outer_transaction_is_published_at_its_commit(
    warren: Warren, database: Database
) -> None:
    async with database.sessions() as sessions:
        shop = Shop(sessions)
        await shop.commit("before")
        async with warren.running(shop.app):
            await warren.settle()
            async with sessions.kw["bind"].connect() as connection:
                await connection.execute(text("CREATE TABLE orders (n int)"))
                await connection.execute(text("INSERT INTO orders VALUES (1)"))
                async with AsyncSession(connection, join_transaction_mode="create_savepoint") as session:
                    await shop.add(session, "inside")
                    await session.commit()
                await warren.settle()
                assert shop.received == ["before"]
                await connection.commit()
            await warren.settle()
        assert shop.received == ["before", "inside"]


async def test_in_autocommit_a_message_is_published_at_once(warren: Warren, database: Database) -> None:
    async with database.sessions(isolation_level="AUTOCOMMIT") as sessions:
        shop = Shop(sessions)
        async with sessions() as session:
            await shop.add(session, "creates the table")
        async with warren.running(shop.app), sessions() as session:
            await warren.settle()
            await shop.add(session, "one")
            await warren.settle()
            assert shop.received == ["creates the table", "one"]


async def test_autocommit_of_one_session_counts(warren: Warren, database: Database) -> None:
    async with database.sessions() as sessions:
        shop = Shop(sessions)
        async with warren.running(shop.app), sessions() as session:
            await warren.settle()
            await session.connection(execution_options={"isolation_level": "AUTOCOMMIT"})
            await shop.add(session, "one")
            await warren.settle()
            assert shop.received == ["one"]


async def test_a_read_only_transaction_adds_nothing_and_breaks_nothing(
    warren: Warren, postgres: Database
) -> None:
    async with postgres.sessions() as sessions:
        shop = Shop(sessions)
        for _ in ("without the tables", "with the tables"):
            async with sessions() as session:
                await session.execute(text("SET TRANSACTION READ ONLY"))
                with pytest.raises(DBAPIError, match="read-only transaction"):
                    await shop.add(session, "never")
            await shop.commit("committed")
        async with warren.running(shop.app):
            await warren.settle()
        assert shop.received == ["committed", "committed"]


async def test_serializable_transactions_that_are_repeated_publish_each_message_once(
    warren: Warren, postgres: Database
) -> None:
    """The transactions conflict with each other: the database ends most of them, and the caller repeats them."""
    async with postgres.sessions(isolation_level="SERIALIZABLE", pool_size=10) as sessions:
        shop = Shop(sessions)
        failures: list[str] = []

        async def place(number: int) -> None:
            while True:
                try:
                    async with sessions.begin() as session:
                        total = (await session.execute(text("SELECT sum(n) FROM orders"))).scalar_one()
                        await session.execute(text("INSERT INTO orders VALUES (:n)"), {"n": total + 1})
                        await shop.add(session, str(number))
                    return
                except DBAPIError as error:
                    assert "could not serialize" in str(error)  # noqa: PT017 - the loop needs the other outcome
                    failures.append(str(number))

        async with sessions.begin() as session:
            await begin(session)
        async with warren.running(shop.app):
            await warren.settle()
            await asyncio.gather(*(place(number) for number in range(20)))
            await warren.settle()
        assert failures
        assert sorted(shop.received) == sorted(str(number) for number in range(20))


async def test_a_stop_waits_until_published_messages_are_deleted(postgres: Database) -> None:
    async with Broker() as broker, postgres.sessions() as sessions:
        shop = Shop(sessions, broker.url)
        await shop.commit("published")
        async with sessions.begin() as session:
            await session.execute(
                text(
                    "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS"
                    " 'BEGIN PERFORM pg_advisory_xact_lock(4711); RETURN OLD; END'"
                )
            )
            await session.execute(
                text(
                    "CREATE TRIGGER waits BEFORE DELETE ON warren_outbox FOR EACH ROW EXECUTE FUNCTION wait()"
                )
            )
        async with sessions() as session:
            await session.execute(text("SELECT pg_advisory_xact_lock(4711)"))

            async def let_it_delete() -> None:
                await eventually(lambda: shop.outbox._relay is None, "the App stops its outbox")
                await session.rollback()

            async with shop.app:
                await eventually(lambda: shop.outbox.statistics.relayed == 1, "the message is published")
                letting = asyncio.create_task(let_it_delete())
            assert await count(sessions) == 0
            await letting


async def test_dropped_tables_are_created_by_the_next_transaction(database: Database) -> None:
    async with database.sessions() as sessions:
        shop = Shop(sessions)
        for _ in range(2):  # The first transaction creates the tables, the second finds them.
            await shop.commit("before")
        await drop_tables(sessions)
        if not database.is_sqlite:
            # A failed statement has ended the transaction of PostgreSQL.
            with pytest.raises(DBAPIError, match="warren_outbox") as raised:
                await shop.commit("in between")
            assert "repeat this one" in raised.value.__notes__[0]
        await shop.commit("after")
        assert await count(sessions) == 1


async def test_a_running_relay_creates_dropped_tables(warren: Warren, database: Database) -> None:
    async with database.sessions() as sessions:
        shop = Shop(sessions)
        async with warren.running(shop.app):
            await shop.commit("before")
            await warren.settle()
            await drop_tables(sessions)
            # The relay looks for messages of other processes, and renews its lease.
            await warren.advance(hours=4)
            await shop.commit("after")
            await warren.advance(seconds=1)
        assert shop.received == ["before", "after"]


async def test_tables_are_created_in_each_database(warren: Warren, tmp_path: Path) -> None:
    """The session factory of an application's tests is bound to one database after the other."""
    sessions: Sessions = async_sessionmaker()
    shop = Shop(sessions)
    for name in ("first", "second"):
        engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/{name}.sqlite")
        sessions.configure(bind=engine)
        async with warren.running(shop.app):
            await shop.commit(name)
            await warren.settle()
        await engine.dispose()
    assert shop.received == ["first", "second"]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("seed", range(20))
async def test_a_search_in_pieces_finds_what_one_statement_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr("warren.patterns.outbox.outbox_tables.SCAN_ROWS", chance.randint(1, 5))
    async with Database(sqlite_url(tmp_path), None).sessions() as sessions:
        outbox = Outbox(sessions, relay=False)
        keys = [chance.choice(["a", "b", "c", "d", "e", None]) for _ in range(40)]
        async with sessions.begin() as session:
            for key in keys:
                await outbox.add(session, b"", ordered_by=key, key="q")
        excluded_keys = chance.sample(["a", "b", "c", "d", "e"], 2)
        excluded_ids = [number for number, key in enumerate(keys, 1) if key is None and chance.random() < 0.5]
        after = chance.choice([0, 3, 10, 20])
        early = set(keys[:after])
        wanted = [
            number
            for number, key in enumerate(keys, 1)
            if number > after
            and number not in excluded_ids
            and (key is None or (key not in excluded_keys and key not in early))
        ]
        found: list[int] = []
        tables = outbox._tables
        while True:
            page = await tables.pending(
                4, excluded_keys=excluded_keys, excluded_ids=excluded_ids, after=after
            )
            found += [row.id for row in page.rows]
            if not page.rows and page.held_back_up_to is None:
                break
            # As the relay does: the messages are published, and those that wait are not read again.
            await tables.delete([row.id for row in page.rows])
            after = max(after, page.held_back_up_to or 0)
        assert found == wanted


async def test_another_kind_of_database_is_refused() -> None:
    class Dialect:
        name = "mysql"

    class Bind:
        dialect = Dialect()

    class Session(AsyncSession):
        def get_bind(self, *_: Any, **__: Any) -> Any:
            return Bind()

    async with Session() as session:
        with pytest.raises(ConfigError, match="PostgreSQL and SQLite, not mysql"):
            await Outbox(async_sessionmaker(), relay=False).add(session, Placed(how="never"))
