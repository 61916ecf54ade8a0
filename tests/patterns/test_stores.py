"""Contract of all stores: an atomic compare-and-set whose result survives a restart."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import asyncpg
import pytest

from tests.patterns.conftest import PATIENCE, OpenStore
from tests.support.polling import eventually
from tests.support.postgres import PostgreSQL
from tests.support.processes import free_port
from tests.support.redis import redis_server
from warren.core.errors import UsageError
from warren.patterns import ListingStore, PostgresStore, RedisStore, SqliteStore, Store, StoreUnavailable
from warren.patterns.stores import RuleResult, SwapResult, apply_rule, postgres_store, sqlite_store

DAY_MS = 86_400_000


async def test_a_record_is_created_changed_read_and_deleted(store: Store) -> None:
    assert await store.compare_and_set("k", None, b"one", keep_ms=DAY_MS) == SwapResult(True, b"one")
    assert await store.compare_and_set("k", b"one", b"two", keep_ms=DAY_MS) == SwapResult(True, b"two")
    assert await store.compare_and_set("k", b"two", b"two", keep_ms=0) == SwapResult(True, b"two")
    assert await store.compare_and_set("k", b"two", None, keep_ms=0) == SwapResult(True, None)
    assert await store.compare_and_set("k", None, None, keep_ms=0) == SwapResult(True, None)


async def test_a_record_that_differs_from_the_expected_one_is_unchanged_and_returned(store: Store) -> None:
    await store.compare_and_set("k", None, b"theirs", keep_ms=DAY_MS)
    for expected in (None, b"mine", b"their"):
        for record in (None, b"mine"):
            assert await store.compare_and_set("k", expected, record, keep_ms=DAY_MS) == SwapResult(
                False, b"theirs"
            )


async def test_records_hold_any_bytes(store: Store) -> None:
    record = bytes(range(256)) * 300
    await store.compare_and_set("schlüssel:\n\x00", None, record, keep_ms=DAY_MS)
    assert await store.compare_and_set("schlüssel:\n\x00", record, record, keep_ms=0) == SwapResult(
        True, record
    )


async def test_records_are_listed_by_the_prefix_of_their_keys(store: ListingStore) -> None:
    mine = {f"a*[b]:{n}": str(n).encode() for n in range(2500)}
    await asyncio.gather(*(store.compare_and_set(k, None, v, keep_ms=DAY_MS) for k, v in mine.items()))
    for other in ("a", "axbx:1", "b", "A*[b]:1"):
        await store.compare_and_set(other, None, b"other", keep_ms=DAY_MS)
    assert dict([entry async for entry in store.records("a*[b]:")]) == mine
    assert len({key async for key, _ in store.records("")}) == 2504


async def test_of_concurrent_changes_exactly_one_is_made(open_store: OpenStore) -> None:
    stores = [open_store(), open_store()]
    answers = await asyncio.gather(
        *(stores[n % 2].compare_and_set("k", None, f"{n}".encode(), keep_ms=DAY_MS) for n in range(50))
    )
    winners = [swap.current for swap in answers if swap.swapped]
    assert len(winners) == 1
    assert {swap.current for swap in answers} == set(winners)


async def test_concurrent_rules_lose_no_step(open_store: OpenStore) -> None:
    def count(record: bytes | None) -> RuleResult[int]:
        number = int(record or b"0") + 1
        return RuleResult(str(number).encode(), number, DAY_MS)

    stores = [open_store(), open_store()]
    answers = await asyncio.gather(*(apply_rule(stores[n % 2], "k", count) for n in range(40)))
    assert sorted(answers) == list(range(1, 41))


async def test_records_survive_closing_and_opening_a_store(open_store: OpenStore) -> None:
    first = open_store()
    await first.compare_and_set("k", None, b"one", keep_ms=DAY_MS)
    await first.close()
    assert await open_store().compare_and_set("k", None, None, keep_ms=0) == SwapResult(False, b"one")
    # A closed store opens again when it is used.
    assert await first.compare_and_set("k", None, None, keep_ms=0) == SwapResult(False, b"one")


async def test_a_cancelled_caller_does_not_affect_concurrent_ones(store: Store) -> None:
    await store.compare_and_set("k", None, b"one", keep_ms=DAY_MS)
    callers = [asyncio.ensure_future(store.compare_and_set("k", None, None, keep_ms=0)) for _ in range(20)]
    await asyncio.sleep(0)
    for caller in callers[::2]:
        caller.cancel()
    answers = await asyncio.gather(*callers, return_exceptions=True)
    assert answers[1::2] == [SwapResult(False, b"one")] * 10
    assert await store.compare_and_set("k", b"one", b"two", keep_ms=DAY_MS) == SwapResult(True, b"two")


async def test_thousands_of_changes_take_seconds(store: Store) -> None:
    """Make the thousands of changes that a busy service needs, on disks whose sync may take two seconds."""
    async with asyncio.timeout(100):
        for start in range(0, 4000, 500):
            await asyncio.gather(
                *(
                    store.compare_and_set(f"k{n}", None, b"one", keep_ms=DAY_MS)
                    for n in range(start, start + 500)
                )
            )


async def test_redis_deletes_expired_records(redis_url: str) -> None:
    store = RedisStore(redis_url, prefix="forgets:", timeout=PATIENCE)
    try:
        await store.compare_and_set("k", None, b"one", keep_ms=30)

        async def is_deleted() -> bool:
            return (await store.compare_and_set("k", None, None, keep_ms=0)).swapped

        await eventually(is_deleted, "the record is deleted")
    finally:
        await store.close()


async def test_a_redis_key_of_another_type_fails_only_its_own_change(redis_url: str) -> None:
    from redis.asyncio import Redis

    async with RedisStore(redis_url, prefix="other:", timeout=PATIENCE) as store:
        client = Redis.from_url(redis_url)
        await client.script_flush()
        await client.rpush("other:list", "theirs")
        await client.aclose()
        asked = (store.compare_and_set(key, None, b"one", keep_ms=DAY_MS) for key in ("a", "list", "b"))
        answers = await asyncio.gather(*asked, return_exceptions=True)
        assert answers[0] == answers[2] == SwapResult(True, b"one")
        assert isinstance(answers[1], StoreUnavailable)
        assert "WRONGTYPE" in str(answers[1])


@pytest.mark.processes
async def test_a_redis_outage_raises_store_unavailable_and_loses_no_record(tmp_path: Path) -> None:
    """An append-only file that is synced at every write keeps all acknowledged changes over a restart of Redis."""
    port = free_port()
    durable = ("--appendonly", "yes", "--appendfsync", "always")
    store = RedisStore(f"redis://127.0.0.1:{port}/0", timeout=PATIENCE)
    try:
        with redis_server(tmp_path, *durable, port=port):
            await store.compare_and_set("k", None, b"one", keep_ms=DAY_MS)
        with pytest.raises(StoreUnavailable, match=r"Redis at redis://127\.0\.0\.1") as caught:
            await store.compare_and_set("k", b"one", b"two", keep_ms=DAY_MS)
        assert caught.value.retryable
        with redis_server(tmp_path, *durable, port=port):
            assert await store.compare_and_set("k", None, None, keep_ms=0) == SwapResult(False, b"one")
    finally:
        await store.close()


async def test_a_postgres_crash_raises_store_unavailable_and_loses_no_record(
    mortal_postgres: PostgreSQL,
) -> None:
    async with PostgresStore(mortal_postgres.url, table="crashed", timeout=PATIENCE) as store:
        await store.compare_and_set("k", None, b"one", keep_ms=DAY_MS)
        mortal_postgres.crash()
        with pytest.raises(StoreUnavailable, match=r"PostgreSQL at postgresql://warren@127") as caught:
            await store.compare_and_set("k", b"one", b"two", keep_ms=DAY_MS)
        assert caught.value.retryable
        mortal_postgres.start()
        assert await store.compare_and_set("k", None, None, keep_ms=0) == SwapResult(False, b"one")


async def test_postgres_deletes_expired_records_and_lists_the_others(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_store, "SWEEP_SECONDS", 0.0)
    async with PostgresStore(postgres_url, table="forgotten", timeout=PATIENCE) as store:
        await store.compare_and_set("a:old", None, b"one", keep_ms=1)
        for key in ("a:1", "a:2", "b:1"):
            await store.compare_and_set(key, None, b"one", keep_ms=DAY_MS)

        async def is_deleted() -> bool:
            return (await store.compare_and_set("a:old", None, None, keep_ms=0)).swapped

        await eventually(is_deleted, "the record is deleted")
        assert [item async for item in store.records("a:")] == [("a:1", b"one"), ("a:2", b"one")]


async def test_sqlite_deletes_expired_records_in_several_sweeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_store, "SWEEP_ROWS", 2)
    path = tmp_path / "decisions.sqlite"
    async with SqliteStore(path) as store:
        await store.compare_and_set("k", None, b"one", keep_ms=DAY_MS)
        store_expired_records(path, 5)
        for _ in range(4):
            await store.compare_and_set("k", None, None, keep_ms=0)
        assert [key async for key, _ in store.records("")] == ["k", *(f"old{n}" for n in range(5))]
    async with SqliteStore(path) as store:
        for _ in range(3):
            await store.compare_and_set("k", None, None, keep_ms=0)
        assert [key async for key, _ in store.records("")] == ["k"]


def store_expired_records(path: Path, count: int) -> None:
    """Store `count` expired records."""
    with closing(sqlite3.connect(path)) as database, database:
        for n in range(count):
            database.execute("INSERT INTO records VALUES (?, ?, 0)", (f"old{n}", b"one"))


async def test_a_dropped_table_of_postgres_is_created_again(postgres_url: str) -> None:
    async with PostgresStore(postgres_url, table="dropped", timeout=PATIENCE) as store:
        await store.compare_and_set("k", None, b"one", keep_ms=DAY_MS)
        connection = await asyncpg.connect(postgres_url)
        await connection.execute("DROP TABLE dropped")
        await connection.close()
        assert (await store.compare_and_set("k", None, b"two", keep_ms=DAY_MS)).swapped
        assert [item async for item in store.records("")] == [("k", b"two")]


async def test_a_dropped_table_of_sqlite_is_created_again(tmp_path: Path) -> None:
    path = tmp_path / "decisions.sqlite"
    async with SqliteStore(path) as store:
        await store.compare_and_set("k", None, b"one", keep_ms=DAY_MS)
        with closing(sqlite3.connect(path)) as database, database:
            database.execute("DROP TABLE records")
        with pytest.raises(StoreUnavailable, match="no such table"):
            await store.compare_and_set("k", None, b"two", keep_ms=DAY_MS)
        assert (await store.compare_and_set("k", None, b"two", keep_ms=DAY_MS)).swapped
        assert [item async for item in store.records("")] == [("k", b"two")]


async def test_postgres_deletes_expired_records_in_several_sweeps(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = "swept_on"
    old = [f"old{n}" for n in range(5)]
    async with PostgresStore(postgres_url, table=table, timeout=PATIENCE) as store:
        await asyncio.gather(*(store.compare_and_set(key, None, b"one", keep_ms=0) for key in old))
    monkeypatch.setattr(postgres_store, "SWEEP_ROWS", 2)
    async with PostgresStore(postgres_url, table=table, timeout=PATIENCE) as store:
        await store.compare_and_set("k", None, b"one", keep_ms=DAY_MS)
        assert len([key async for key, _ in store.records("")]) == 6
        store._connections.current()._swept -= 60  # As a minute later.
        await store.compare_and_set("k", None, None, keep_ms=0)
        for _ in range(2):
            await store.compare_and_set("k", None, None, keep_ms=0)
        assert [key async for key, _ in store.records("")] == ["k"]


async def test_processes_that_change_the_same_keys_in_different_orders_do_not_deadlock(
    open_store: OpenStore,
) -> None:
    """Change keys in opposite orders, which deadlocks where transactions lock rows as they come."""

    def count(record: bytes | None) -> RuleResult[int]:
        return RuleResult(str(int(record or b"0") + 1).encode(), 0, DAY_MS)

    stores = [open_store(), open_store(), open_store()]
    keys = [f"k{n}" for n in range(30)]
    orders = [keys, keys[::-1], keys[10:] + keys[:10]]
    for _ in range(5):
        await asyncio.gather(
            *(
                apply_rule(store, key, count)
                for store, order in zip(stores, orders, strict=True)
                for key in order
            )
        )
    found = {(await stores[0].compare_and_set(key, b"", b"", keep_ms=0)).current for key in keys}
    assert found == {b"15"}


def test_a_password_is_not_shown() -> None:
    assert "hunter2" not in repr(PostgresStore("postgresql://u:hunter2@h/d?sslpassword=hunter2"))
    assert repr(RedisStore("redis://:hunter2@127.0.0.1:1/0")) == "RedisStore('redis://:***@127.0.0.1:1/0')"
    assert repr(RedisStore("redis://u:hunter2@h/0")) == "RedisStore('redis://u:***@h/0')"
    assert "hunter2" not in repr(RedisStore("unix:///run/redis.sock?db=1&password=hunter2"))


@pytest.mark.parametrize(
    "url",
    [
        "amqp://guest:hunter2@127.0.0.1/",
        "redis//:hunter2@127.0.0.1/0",
        "redis://:hunter2@127.0.0.1:port/0",
        "redis://:hunter2/x@127.0.0.1/0",
        "redis://:hunter2@[::1/0",
        "redis:hunter2",
        "",
    ],
)
def test_an_invalid_redis_url_raises_an_error_without_its_password(url: str) -> None:
    with pytest.raises(UsageError, match="write redis://HOST:PORT/DATABASE") as caught:
        RedisStore(url)
    assert "hunter2" not in str(caught.value)


def test_an_invalid_postgres_url_raises_an_error_without_its_password() -> None:
    for url in ("mysql://u:hunter2@h/d", "postgresql//u:hunter2@h", "postgresql://u:hunter2@h:port/d", ""):
        with pytest.raises(UsageError, match="postgresql://USER") as caught:
            PostgresStore(url)
        assert "hunter2" not in str(caught.value)


async def test_a_key_that_cannot_be_encoded_fails_only_its_own_change(store: Store) -> None:
    async with asyncio.timeout(100):
        with pytest.raises(StoreUnavailable, match="surrogates not allowed"):
            await store.compare_and_set("\ud800", None, b"one", keep_ms=DAY_MS)
        assert await store.compare_and_set("k", None, b"one", keep_ms=DAY_MS) == SwapResult(True, b"one")


def test_a_missing_driver_raises_an_error_with_the_package_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "redis"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(UsageError, match=r"pip install 'warrenmq\[redis\]'"):
        RedisStore("redis://127.0.0.1")
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    with pytest.raises(UsageError, match=r"pip install 'warrenmq\[sql\]'"):
        PostgresStore("postgresql://127.0.0.1/db")


@pytest.mark.processes
async def test_sqlite_records_survive_a_kill_of_the_process(tmp_path: Path) -> None:
    path = tmp_path / "decisions.sqlite"
    script = (
        "import asyncio, os, sys\n"
        "from warren.patterns import SqliteStore\n"
        "async def main():\n"
        "    store = SqliteStore(sys.argv[1])\n"
        "    await store.compare_and_set('k', None, b'one', keep_ms=86_400_000)\n"
        "    os.kill(os.getpid(), 9)\n"
        "asyncio.run(main())\n"
    )
    died = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", script, str(path)], env=dict(os.environ)
    )
    assert died.returncode == -9
    store = SqliteStore(path)
    try:
        assert await store.compare_and_set("k", None, None, keep_ms=0) == SwapResult(False, b"one")
    finally:
        await store.close()


async def test_a_locked_sqlite_file_raises_store_unavailable_until_it_is_unlocked(tmp_path: Path) -> None:
    path = tmp_path / "decisions.sqlite"
    store = SqliteStore(path, timeout=0.2)
    await store.compare_and_set("k", None, b"one", keep_ms=DAY_MS)
    blocker = sqlite3.connect(path, isolation_level=None)
    try:
        blocker.execute("BEGIN EXCLUSIVE")  # Another program that holds the file for longer than we wait.
        with pytest.raises(StoreUnavailable, match="database is locked"):
            await store.compare_and_set("k", b"one", b"two", keep_ms=DAY_MS)
        blocker.execute("ROLLBACK")
        assert await store.compare_and_set("k", b"one", b"two", keep_ms=DAY_MS) == SwapResult(True, b"two")
    finally:
        blocker.close()
        await store.close()


def test_sqlite_store_rejects_files_that_are_not_its_own(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="check that its folder exists"):
        SqliteStore(tmp_path / "missing" / "decisions.sqlite")
    (tmp_path / "text").write_text(
        "this is no database, and long enough that SQLite looks at its header\n" * 20
    )
    with pytest.raises(UsageError, match="name a new file"):
        SqliteStore(tmp_path / "text")
    foreign = sqlite3.connect(tmp_path / "foreign")
    foreign.execute("CREATE TABLE theirs (x)")
    foreign.close()
    with pytest.raises(UsageError, match="not a store of Warren's"):
        SqliteStore(tmp_path / "foreign")
    SqliteStore(tmp_path / "newer")
    newer = sqlite3.connect(tmp_path / "newer")
    newer.execute("PRAGMA user_version = 99")
    newer.close()
    with pytest.raises(UsageError, match="has format 99"):
        SqliteStore(tmp_path / "newer")
