"""Stores and limiters with several owners: event loops in threads, forked processes, tests with clocks of their own."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from threading import Barrier
from uuid import uuid4

import asyncpg
import pytest
from redis.asyncio import Redis

from tests.patterns.conftest import PATIENCE
from warren.broker import VirtualClock
from warren.core.errors import UsageError
from warren.patterns import (
    LocalRateLimiter,
    MemoryStore,
    PostgresStore,
    RateLimitExceeded,
    RedisStore,
    SqliteStore,
    Store,
)
from warren.patterns.stores import RuleResult, apply_rule

DAY_MS = 86_400_000


def count(record: bytes | None) -> RuleResult[int]:
    number = int(record or b"0") + 1
    return RuleResult(str(number).encode(), number, DAY_MS)


@pytest.mark.parametrize("kind", ["memory", "sqlite", "redis", "postgres"])
def test_event_loops_in_threads_share_a_store(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    name = f"t{uuid4().hex}"
    store: Store
    if kind == "memory":
        store = MemoryStore()
    elif kind == "sqlite":
        store = SqliteStore(tmp_path / "records.sqlite", timeout=PATIENCE)
    elif kind == "redis":
        redis: str = request.getfixturevalue("redis_url")
        store = RedisStore(f"{redis}?client_name={name}", prefix=name, timeout=PATIENCE)
    else:
        postgres: str = request.getfixturevalue("postgres_url")
        store = PostgresStore(postgres, table=name, timeout=PATIENCE)
    turns = Barrier(2)

    async def connections() -> int:
        if kind == "redis":
            async with Redis.from_url(redis) as operator:
                return sum(client["name"] == name for client in await operator.client_list())
        operator = await asyncpg.connect(postgres)
        try:
            sql = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE $1 AND pid <> pg_backend_pid()"
            return int(await operator.fetchval(sql, f"%{name}%"))
        finally:
            await operator.close()

    async def changes() -> list[int]:
        numbers = []
        for _ in range(20):
            # In turns, so that a store that knows one loop only would connect anew each time.
            turns.wait(PATIENCE)
            numbers.append(await apply_rule(store, "counter", count))
        if kind in ("redis", "postgres"):
            assert await connections() <= 2
        turns.wait(PATIENCE)
        await store.close()
        return numbers

    with ThreadPoolExecutor(2) as threads:
        of_each = [threads.submit(asyncio.run, changes()) for _ in range(2)]
        assert sorted(of_each[0].result() + of_each[1].result()) == list(range(1, 41))


FORK = """
import asyncio, os, sys
from warren.patterns import PostgresStore, RedisStore, SqliteStore

kind, address, name = sys.argv[1:]
store = {"sqlite": SqliteStore, "redis": RedisStore, "postgres": PostgresStore}[kind](address, timeout=60)

async def change(key):
    swap = await store.compare_and_set(f"{name} {key}", None, b"x", keep_ms=60_000)
    if key != "parent" or kind != "sqlite":
        await store.close()
    assert swap.swapped

asyncio.run(change("parent"))
child = os.fork()
if not child:
    try:
        asyncio.run(change("child"))
        os._exit(0)
    except BaseException:
        import traceback
        traceback.print_exc()
        os._exit(1)
assert os.waitpid(child, 0)[1] == 0
asyncio.run(change("parent again"))
"""


@pytest.mark.processes
@pytest.mark.parametrize("kind", ["sqlite", "redis", "postgres"])
def test_a_forked_process_can_use_a_store_that_its_parent_used(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    address = str(tmp_path / "store.sqlite") if kind == "sqlite" else request.getfixturevalue(f"{kind}_url")
    arguments = [sys.executable, "-W", "ignore", "-c", FORK, kind, address, uuid4().hex]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", [":memory:", ""])
def test_a_database_in_memory_is_refused_with_the_store_to_use(path: str) -> None:
    with pytest.raises(UsageError, match=r"SqliteStore needs a file, .*: use MemoryStore\(\) in tests"):
        SqliteStore(path)


async def test_a_limiter_does_not_take_the_times_of_an_earlier_test_for_its_own() -> None:
    limiter = LocalRateLimiter(1, per=timedelta(hours=10))
    earlier, later = VirtualClock(start=2_000_000_000.0), VirtualClock(start=1_000_000_000.0)
    limiter.use_clock(earlier)
    await limiter.reserve(within=timedelta(0))
    with pytest.raises(RateLimitExceeded):
        await limiter.reserve(within=timedelta(0))
    limiter.use_clock(later)
    assert await limiter.reserve(within=timedelta(0)) == timedelta(0)
