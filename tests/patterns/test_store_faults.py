"""Faults of the servers of stores: answers that are lost, refusals that pass, and a failover behind one address."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import pytest
from redis.asyncio import Redis

from tests.patterns.conftest import PATIENCE
from tests.support.polling import eventually
from tests.support.proxy import Proxy
from tests.support.redis import redis_server
from warren.patterns import ListingStore, PostgresStore, RedisStore, SequenceNumbers, StoreUnavailable
from warren.patterns.stores import RuleResult, apply_rule_with_retry
from warren.sdk import SystemClock


@asynccontextmanager
async def store_behind(
    kind: str, request: pytest.FixtureRequest
) -> AsyncIterator[tuple[ListingStore, Proxy, ListingStore]]:
    """Return a store, the proxy in front of its server, and the same store without the proxy."""
    url: str = request.getfixturevalue(f"{kind}_url")
    own = f"t{uuid4().hex}"

    def at(address: str) -> RedisStore | PostgresStore:
        if kind == "redis":
            return RedisStore(address, prefix=own, timeout=PATIENCE)
        return PostgresStore(address, table=own, timeout=PATIENCE)

    async with Proxy(url) as proxy, at(proxy.url) as store, at(url) as direct:
        yield store, proxy, direct


async def record(store: ListingStore, key: str) -> bytes | None:
    return (await store.compare_and_set(key, None, None, keep_ms=1)).current


@pytest.mark.parametrize("kind", ["redis", "postgres"])
async def test_a_number_whose_answer_is_lost_is_never_skipped_in_silence(
    request: pytest.FixtureRequest, kind: str
) -> None:
    async with store_behind(kind, request) as (store, proxy, direct):
        numbers = SequenceNumbers("orders", store=store)
        assert (await numbers.next("42"))["warren-sequence"] == 1
        # The read before the change is answered.
        stored = await store.compare_and_set("numbers:orders:42", b"", b"", keep_ms=1)
        assert stored.current == b"1"

        proxy.to_client.hold()
        change = asyncio.ensure_future(store.compare_and_set("numbers:orders:42", b"1", b"2", keep_ms=10**9))

        async def changed() -> bool:
            return await record(direct, "numbers:orders:42") == b"2"

        await eventually(changed, "the change is made")
        proxy.cut()
        proxy.to_client.release()
        with pytest.raises(StoreUnavailable, match="did not answer"):
            await change
        assert (await numbers.next("42"))["warren-sequence"] == 3


@pytest.mark.processes
@pytest.mark.parametrize(
    ("setting", "value", "healthy", "refusal"),
    [
        ("maxmemory", "1", "0", "used memory > 'maxmemory'"),
        ("min-replicas-to-write", "1", "0", "NOREPLICAS"),
        ("maxclients", "1", "10000", "did not answer"),
    ],
)
async def test_a_rule_waits_for_a_server_that_refuses_for_now(
    tmp_path: Path, setting: str, value: str, healthy: str, refusal: str
) -> None:
    with redis_server(tmp_path) as url:
        operator = Redis.from_url(url)
        await operator.config_set(setting, value)
        async with RedisStore(url, timeout=PATIENCE) as store:
            with pytest.raises(StoreUnavailable, match=refusal):
                await store.compare_and_set("key", None, b"record", keep_ms=60_000)

            attempts = 0

            def rule(record: bytes | None) -> RuleResult[str]:
                nonlocal attempts
                attempts += 1
                return RuleResult(b"record", "done", 60_000)

            waiting = asyncio.ensure_future(
                apply_rule_with_retry(store, "key", rule, clock=SystemClock(), patience=PATIENCE)
            )
            await eventually(lambda: attempts >= 3, "the rule is applied again and again")
            await operator.config_set(setting, healthy)
            assert await waiting == "done"
        await operator.aclose()


@pytest.mark.sampled(2)
@pytest.mark.processes
@pytest.mark.parametrize("how", ["change", "script"])
async def test_a_store_finds_the_new_master_behind_its_address(tmp_path: Path, how: str) -> None:
    """The open connection leads to the old master, which is read-only now."""
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
    with redis_server(folders[0]) as one, redis_server(folders[1]) as two:
        old, new = Redis.from_url(one), Redis.from_url(two)
        await new.replicaof("127.0.0.1", one.rpartition(":")[2].partition("/")[0])
        async with Proxy(one) as proxy, RedisStore(proxy.url, prefix="", timeout=PATIENCE) as store:
            assert (await store.compare_and_set("a", None, b"x", keep_ms=60_000)).swapped
            await eventually(lambda: _has(new, "a"), "the replica has the record")
            await new.replicaof("NO", "ONE")
            await old.replicaof("127.0.0.1", two.rpartition(":")[2].partition("/")[0])
            proxy.lead_to(two)
            script = "return redis.call('SET', KEYS[1], 'x')"
            with pytest.raises(StoreUnavailable, match=r"refused a request: .*read.only"):
                await (
                    store.compare_and_set("b", None, b"x", keep_ms=60_000)
                    if how == "change"
                    else store.run(script, "b")
                )
            assert (await store.compare_and_set("b", None, b"x", keep_ms=60_000)).swapped
            assert await new.get("b") == b"x"
        await old.aclose()
        await new.aclose()


async def test_a_connection_that_redis_closed_while_it_was_idle_is_opened_again(redis_url: str) -> None:
    operator = Redis.from_url(redis_url)
    name = f"t{uuid4().hex}"
    url = f"{redis_url}?client_name={name}"

    async def is_connected() -> bool:
        return any(client["name"] == name for client in await operator.client_list())

    async with RedisStore(url, prefix=name, timeout=PATIENCE) as store:
        assert (await store.compare_and_set("a", None, b"x", keep_ms=60_000)).swapped
        (number,) = [client["id"] for client in await operator.client_list() if client["name"] == name]
        await operator.client_kill_filter(_id=number)
        assert not await is_connected()
        assert (await store.compare_and_set("b", None, b"x", keep_ms=60_000)).swapped
        assert await is_connected()
    await operator.aclose()


async def _has(server: Redis, key: str) -> bool:
    return bool(await server.exists(key))
