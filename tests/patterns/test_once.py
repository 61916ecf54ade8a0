"""`Once` without a broker, on every store: duplicates, leases, and failures of handlers and stores."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

from tests.patterns.conftest import PATIENCE, OpenStore
from tests.patterns.faults.skewed_clock import SkewedClock
from tests.patterns.flaky_store import FlakyStore
from tests.support.polling import eventually
from tests.support.processes import closed_port, free_port
from tests.support.redis import redis_server
from warren.broker import VirtualClock
from warren.patterns import Once, RedisStore, Store, StoreUnavailable
from warren.patterns.idempotency import rules
from warren.patterns.stores import apply_rule, record_key
from warren.sdk import ConfigError, DeadLetter, Delivery, SystemClock

LEASE = timedelta(minutes=10)


def delivery(message_id: str | None = "m-1", queue: str = "charges") -> Delivery:
    return Delivery(
        body=b"{}",
        exchange="",
        routing_key=queue,
        queue=queue,
        redelivered=False,
        headers={},
        properties={} if message_id is None else {"message_id": message_id},
    )


class Handler:
    """Handler that counts its runs, and returns a different result each time."""

    def __init__(self, work: Callable[[], Awaitable[object]] | None = None) -> None:
        self.runs = 0
        self._work = work

    async def __call__(self) -> bytes:
        self.runs += 1
        number = self.runs
        if self._work is not None:
            await self._work()
        return f'{{"receipt": {number}}}'.encode()


async def test_a_duplicate_gets_the_first_result_without_running_the_handler(open_store: OpenStore) -> None:
    handler = Handler()
    assert await Once(open_store()).run(None, delivery(), handler) == b'{"receipt": 1}'
    other_process = Once(open_store())
    assert await other_process.run(None, delivery(), handler) == b'{"receipt": 1}'
    assert handler.runs == 1
    assert other_process.statistics.duplicates == 1


async def test_messages_of_other_ids_or_queues_are_no_duplicates(store: Store) -> None:
    once, handler = Once(store), Handler()
    for its in (delivery("m-1"), delivery("m-2"), delivery("m-1", queue="refunds"), delivery("m" * 10_000)):
        await once.run(None, its, handler)
    assert handler.runs == 4
    assert record_key("once", "a:b", "c") != record_key("once", "a", "b:c")


async def test_messages_with_the_same_key_and_other_ids_are_duplicates(store: Store) -> None:
    once, handler = Once(store, key=lambda order: str(order["order_id"])), Handler()
    await once.run({"order_id": 42}, delivery("m-1"), handler)
    await once.run({"order_id": 42}, delivery("m-2"), handler)
    await once.run({"order_id": 43}, delivery("m-3"), handler)
    assert handler.runs == 2


async def test_concurrent_duplicates_run_the_handler_once_and_all_get_the_result(
    open_store: OpenStore,
) -> None:
    first, second = Once(open_store()), Once(open_store())

    def waited() -> int:
        return first.statistics.waited + second.statistics.waited

    handler = Handler(partial(eventually, lambda: waited() == 5, "the other five wait"))
    results = await asyncio.gather(*((first, second)[n % 2].run(None, delivery(), handler) for n in range(6)))
    assert handler.runs == 1
    assert set(results) == {b'{"receipt": 1}'}
    assert waited() == 5


async def test_a_message_whose_handler_raised_can_be_handled_again(store: Store) -> None:
    once = Once(store)

    async def fail() -> bytes:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await once.run(None, delivery(), fail)
    assert await once.run(None, delivery(), Handler()) == b'{"receipt": 1}'
    assert once.statistics.failed == 1


async def test_a_cancelled_handler_releases_its_claim(store: Store) -> None:
    once = Once(store, lease=timedelta(hours=1))
    began = asyncio.Event()

    async def hang() -> bytes:
        began.set()
        await asyncio.Event().wait()
        return b""

    running = asyncio.ensure_future(once.run(None, delivery(), hang))
    await began.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    async with asyncio.timeout(30):
        assert await once.run(None, delivery(), Handler()) == b'{"receipt": 1}'


async def test_after_a_crash_the_next_delivery_runs_when_the_lease_has_expired(open_store: OpenStore) -> None:
    dead, clock = open_store(), SkewedClock(0)
    once = Once(open_store(), lease=LEASE, clock=clock)
    began = clock.now()
    abandoned = partial(
        rules.claim, owner="dead", now_ms=_now_ms(), lease_ms=LEASE // timedelta(milliseconds=1)
    )
    await apply_rule(dead, record_key("once", "charges", "m-1"), abandoned)
    handler = Handler()
    async with asyncio.timeout(120):
        running = asyncio.ensure_future(once.run(None, delivery(), handler))
        await eventually(lambda: once.statistics.waited == 1, "it waits")
        assert handler.runs == 0
        clock.skew = LEASE.total_seconds() - 0.3
        await running
    assert clock.now() - began >= LEASE.total_seconds() - 0.1
    assert handler.runs == 1
    assert once.statistics.waited == 1


async def test_a_handler_that_runs_longer_than_its_lease_renews_it(open_store: OpenStore) -> None:
    clock, store, end = VirtualClock(), FlakyStore(open_store()), asyncio.Event()
    first, second = (Once(its, lease=LEASE, clock=clock) for its in (store, open_store()))
    handler = Handler(end.wait)
    running = asyncio.ensure_future(first.run(None, delivery(), handler))
    await eventually(lambda: handler.runs == 1, "it runs")
    waiting = asyncio.ensure_future(second.run(None, delivery(), handler))

    async def renewed(times: int) -> None:
        """Wait until the lease is renewed so often, and both sleep again."""
        await eventually(lambda: (store.changes, clock.timers) == (1 + times, 2), f"{times} renewals")

    await renewed(0)
    for times in range(1, 7):
        await clock.advance(LEASE.total_seconds() / 3)
        await renewed(times)
    end.set()
    result = await running

    async def second_finished() -> bool:
        await clock.advance(1)
        return waiting.done()

    await eventually(second_finished, "the second has asked again")
    assert handler.runs == 1
    assert waiting.result() == result


async def test_a_handler_that_lost_its_lease_is_counted_and_does_not_overwrite_the_result(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    once = Once(store)
    key = record_key("once", "charges", "m-1")

    async def lose_lease() -> None:
        later = _now_ms() + 60_000  # As after a long pause of this process.
        claimed = await apply_rule(
            store, key, partial(rules.claim, owner="other", now_ms=later, lease_ms=30_000)
        )
        assert isinstance(claimed, rules.Claimed)
        await apply_rule(
            store,
            key,
            partial(rules.finish, claimed=claimed, result=b"theirs", now_ms=later, keep_ms=60_000),
        )

    await once.run(None, delivery(), Handler(lose_lease))
    assert once.statistics.overtaken == 1
    assert "event=once.lease_overtaken" in caplog.text
    assert await once.run(None, delivery(), Handler()) == b"theirs"


async def test_a_message_without_identity_is_dead_lettered_with_the_reason(store: Store) -> None:
    with pytest.raises(DeadLetter, match="no message_id"):
        await Once(store).run(None, delivery(None), Handler())
    with pytest.raises(ConfigError, match="at least 1 ms"):
        Once(store, keep=timedelta(0))


async def test_without_a_store_a_fail_closed_handler_does_not_run_and_a_fail_open_one_does() -> None:
    with closed_port() as port:
        store = RedisStore(f"redis://127.0.0.1:{port}/0", timeout=0.5)
        handler = Handler()
        closed = Once(store, patience=timedelta(milliseconds=100))
        with pytest.raises(StoreUnavailable) as caught:
            await closed.run(None, delivery(), handler)
        assert caught.value.retryable
        assert handler.runs == 0
        opened = Once(store, on_store_failure="fail_open")
        assert await opened.run(None, delivery(), handler) == b'{"receipt": 1}'
        assert opened.statistics.unprotected == 1
        await closed.on_stop()


@pytest.mark.processes
async def test_a_handler_waits_for_an_unavailable_store_for_its_patience(tmp_path: Path) -> None:
    port = free_port()
    once = Once(RedisStore(f"redis://127.0.0.1:{port}/0"), patience=timedelta(minutes=4))
    waiting = asyncio.ensure_future(once.run(None, delivery(), Handler()))
    await asyncio.sleep(0)
    with redis_server(tmp_path, port=port):
        assert await waiting == b'{"receipt": 1}'
        await once.on_stop()


@pytest.mark.processes
async def test_a_handler_succeeds_if_the_store_fails_while_it_runs(tmp_path: Path) -> None:
    with redis_server(tmp_path) as url:
        once = Once(RedisStore(url, timeout=PATIENCE), patience=timedelta(milliseconds=100))
        began, end = asyncio.Event(), asyncio.Event()

        async def work() -> None:
            began.set()
            await end.wait()

        running = asyncio.ensure_future(once.run(None, delivery(), Handler(work)))
        await began.wait()
    end.set()
    assert await running == b'{"receipt": 1}'
    assert once.statistics.unrecorded == 1
    await once.on_stop()


def _now_ms() -> int:
    return int(SystemClock().now() * 1000)
