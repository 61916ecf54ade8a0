"""`MemoryStore`, and `override_store`, which puts it in place of another store of existing patterns."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from warren.broker import VirtualClock
from warren.patterns import (
    Deadline,
    IntervalSchedule,
    MemoryStore,
    Once,
    RedisStore,
    Resequencer,
    SequenceNumbers,
    Store,
    StoreUnavailable,
    Timers,
    override_store,
)
from warren.sdk import App, Command, ConfigError, Event
from warren.testing import Warren


class Pay(Command, queue="pay"):
    order_id: str


class Unpaid(Event, exchange="orders", key="unpaid", audience=["unpaid"]):
    order_id: str


class Tick(Event, exchange="ticks", key="tick"):
    number: int = 0


UNREACHABLE = "redis://127.0.0.1:1/"


async def test_a_record_is_replaced_only_if_it_is_the_expected_one() -> None:
    store = MemoryStore()
    assert await store.compare_and_set("k", None, b"1", keep_ms=1000) == (True, b"1")
    assert await store.compare_and_set("k", None, b"2", keep_ms=1000) == (False, b"1")
    assert await store.compare_and_set("k", b"1", b"1", keep_ms=1000) == (True, b"1")
    assert await store.compare_and_set("k", b"1", b"2", keep_ms=1000) == (True, b"2")
    await store.compare_and_set("other", None, b"3", keep_ms=1000)
    await store.close()
    assert [found async for found in store.records("k")] == [("k", b"2")]
    assert await store.compare_and_set("k", b"2", None, keep_ms=0) == (True, None)
    assert [found async for found in store.records("")] == [("other", b"3")]


async def test_records_expire_by_the_clock_of_the_store() -> None:
    clock = VirtualClock(start=1000.0)
    store = MemoryStore(clock=clock)
    await store.compare_and_set("short", None, b"1", keep_ms=1000)
    await store.compare_and_set("long", None, b"1", keep_ms=1000)
    await store.compare_and_set("long", b"1", b"2", keep_ms=60_000)
    await clock.advance(2)
    assert [found async for found in store.records("")] == [("long", b"2")]
    assert await store.compare_and_set("short", None, b"new", keep_ms=1000) == (True, b"new")
    await clock.advance(60)
    assert [found async for found in store.records("")] == []


def test_threads_may_share_a_store() -> None:
    store = MemoryStore()

    async def count() -> None:
        for _ in range(500):
            seen: bytes | None = None
            while True:
                swap = await store.compare_and_set(
                    "n", seen, str(int(seen or b"0") + 1).encode(), keep_ms=60_000
                )
                if swap.swapped:
                    break
                seen = swap.current

    threads = [threading.Thread(target=lambda: asyncio.run(count())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    async def read() -> list[tuple[str, bytes]]:
        return [found async for found in store.records("n")]

    assert asyncio.run(read()) == [("n", b"2000")]


async def test_use_outside_of_tests_is_logged_once(caplog: pytest.LogCaptureFixture, warren: Warren) -> None:
    store, tested = MemoryStore(), MemoryStore(clock=warren.clock)
    with caplog.at_level(logging.WARNING, "warren.patterns"):
        await tested.compare_and_set("k", None, b"1", keep_ms=1)
        assert "memory_store.used" not in caplog.text
        await store.compare_and_set("k", None, b"1", keep_ms=1)
        await store.compare_and_set("k", None, b"1", keep_ms=1)
    assert caplog.text.count("event=memory_store.used") == 1


async def test_every_pattern_of_an_app_uses_the_replacement(warren: Warren) -> None:
    """The App was built with a Redis that nobody can reach."""
    redis = RedisStore(UNREACHABLE)
    app = App("amqp://nowhere.invalid/")
    deadline = Deadline("payment", after="30m", signal=lambda key: Unpaid(order_id=key), store=redis)
    timers = Timers("ticks", store=redis, sends=[Tick], schedules=[IntervalSchedule("tick", "10m", Tick())])
    numbered = Resequencer("numbered", store=redis)
    numbers = SequenceNumbers("orders", store=redis)
    handled: list[str] = []

    @app.handle(Pay, once=Once(redis, key=lambda pay: pay.order_id))
    async def pay(command: Pay) -> None:
        handled.append(command.order_id)
        await deadline.start(command.order_id)

    @app.handle(Unpaid, queue="unpaid")
    async def unpaid(event: Unpaid) -> None: ...

    @numbered.handle(bytes)
    async def one(body: bytes) -> None:
        handled.append(body.decode())

    for component in (deadline, timers, numbered):
        app.include(component)
    memory = MemoryStore()
    with override_store(redis, memory):
        async with warren.running(app):
            await warren.publish(Pay(order_id="1"))
            await warren.publish(Pay(order_id="1"))
            first, second = await numbers.next("a"), await numbers.next("a")
            await warren.publish(b"second", key="numbered", headers=second)
            await warren.publish(b"first", key="numbered", headers=first)
            assert handled == ["1", "first", "second"]
            await warren.advance("25m")
            assert warren.published(Unpaid) == []
            await warren.advance("10m")
            assert [event.order_id for event in warren.published(Unpaid)] == ["1"]
            assert len(warren.published(Tick)) == 3
    kinds = {key.partition(":")[0] async for key, _ in memory.records("")}
    assert {"once", "deadline", "timer", "timers", "numbers"} <= kinds


async def test_the_original_store_is_back_after_the_block() -> None:
    redis, outer, inner = RedisStore(UNREACHABLE, timeout="50ms"), MemoryStore(), MemoryStore()
    numbers = SequenceNumbers("orders", store=redis)

    async def taken(store: Store) -> int:
        assert isinstance(store, MemoryStore)
        return len([key async for key, _ in store.records("")])

    with override_store(redis, outer):
        with override_store(redis, inner):
            await numbers.next("a")
        await numbers.next("a")
    assert (await taken(outer), await taken(inner)) == (1, 1)
    with pytest.raises(StoreUnavailable):
        await numbers.next("a")


class NotListing:
    async def compare_and_set(self) -> None: ...


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (object, "override_store needs a store as the replacement, such as MemoryStore"),
        (NotListing, "NotListing cannot replace RedisStore: it has no `records`"),
    ],
)
def test_a_replacement_that_cannot_serve_is_refused(other: Callable[[], Store], text: str) -> None:
    with pytest.raises(ConfigError, match=text), override_store(RedisStore(UNREACHABLE), other()):
        pass


@pytest.mark.parametrize(
    ("store", "shown"),
    [
        (lambda: "redis://127.0.0.1", "str"),
        (lambda: None, "NoneType"),
        (lambda: Once(MemoryStore()), "Once"),
    ],
)
def test_what_is_no_store_cannot_be_replaced(store: Callable[[], Any], shown: str) -> None:
    text = (
        f"(?m)^override_store replaces a store that patterns were created with, not a {shown}: .* have none$"
    )
    with pytest.raises(ConfigError, match=text), override_store(store(), MemoryStore()):
        pass
