"""Delayed messages that are cancelled, replaced and listed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.patterns.conftest import NewApp, OpenStore
from tests.support.async_client import take_one
from tests.support.polling import eventually
from warren.patterns import BinaryDelayQueues, Cancellation, Delay, ListingStore, SqliteStore
from warren.sdk import App, Command, Event, Exchange, Subscription

UNIT = timedelta(milliseconds=50)
SOON = timedelta(milliseconds=100)
LATER = timedelta(hours=1)
STRATEGY = BinaryDelayQueues(unit=UNIT, levels=18)


@pytest.fixture
async def open_store(tmp_path: Path) -> AsyncIterator[OpenStore]:
    """SQLite alone: the rules are the same above every store."""
    opened: list[SqliteStore] = []

    def open_one() -> SqliteStore:
        opened.append(SqliteStore(tmp_path / "delays.sqlite"))
        return opened[-1]

    yield open_one
    for store in opened:
        await store.close()


class Alarms:
    """App that sends delayed messages to itself and records their texts."""

    def __init__(self, app: App, name: str, store: ListingStore, **settings: Any) -> None:
        class Ring(Command, queue=f"{name}.bell"):
            text: str

        self.ring = Ring
        self.app = app
        self.delay = Delay(f"{name}.delay", strategy=STRATEGY, store=store, **settings)
        self.received: list[str] = []
        app.include(self.delay)

        @app.handle(Ring)
        async def bell(ring: Ring) -> None:
            self.received.append(ring.text)

    @property
    def due(self) -> Subscription:
        """Subscription of the queue of due messages; tests pause it until the steps before are done."""
        return self.app.subscriptions[f"{self.delay.name}.due"]

    async def delay_message(self, text: str, after: timedelta, cancel_key: str | None = None) -> None:
        await self.delay.after(self.ring(text=text), after, cancel_key=cancel_key)

    async def listed(self) -> dict[str, str]:
        return {one.key: one.routing_key async for one in self.delay.delayed()}


async def test_a_cancelled_message_never_arrives_and_others_do(
    new_app: NewApp, name: str, open_store: OpenStore
) -> None:
    alarms = Alarms(new_app(), name, open_store())
    async with alarms.app:
        await alarms.due.pause()
        await alarms.delay_message("a", SOON, "order 1")
        await alarms.delay_message("b", SOON, "order 2")
        assert await alarms.delay.cancel("order 1") is Cancellation.CANCELLED
        assert await alarms.delay.cancel("order 1") is Cancellation.CANCELLED
        assert await alarms.delay.cancel("order 3") is Cancellation.UNKNOWN
        await alarms.due.resume()
        statistics = alarms.delay.statistics
        await eventually(lambda: statistics.cancelled == 1, "the tombstone is found")
        await eventually(lambda: alarms.received == ["b"], "the other one arrives")
        await eventually(lambda: statistics.passed == 1, "it is counted")
        assert await alarms.delay.cancel("order 2") is Cancellation.TOO_LATE
    assert (statistics.passed, statistics.delayed, statistics.unknown) == (1, 2, 0)


async def test_a_second_message_with_the_same_cancel_key_replaces_the_first(
    new_app: NewApp, name: str, open_store: OpenStore
) -> None:
    alarms = Alarms(new_app(), name, open_store())
    async with alarms.app:
        await alarms.due.pause()
        await alarms.delay_message("first", 10 * SOON, "k")
        await alarms.delay_message("second", SOON, "k")
        await alarms.due.resume()
        await eventually(lambda: alarms.received == ["second"], "the second arrives")
        await eventually(lambda: alarms.delay.statistics.superseded == 1, "the first has ended")
        await alarms.delay_message("third", SOON, "k")
        await eventually(lambda: alarms.received == ["second", "third"], "the key serves again")


async def test_delayed_messages_are_listed_by_any_process(
    new_app: NewApp, name: str, open_store: OpenStore
) -> None:
    class BellRang(Event, exchange=f"{name}.bells", key="bell.rang", audience=[f"{name}.listeners"]):
        pass

    alarms, other = Alarms(new_app(), name, open_store()), Alarms(new_app(), name, open_store())
    async with alarms.app, other.app:
        before = datetime.now(UTC)
        await alarms.delay_message("a", LATER, "order 1")
        await alarms.delay_message("b", LATER, "100% [of]* \\it?")
        await alarms.delay_message("c", LATER)
        await alarms.delay.after(BellRang(), LATER, cancel_key="bell", message_id="m1")
        assert await other.listed() == {
            "order 1": f"{name}.bell",
            "100% [of]* \\it?": f"{name}.bell",
            "bell": "bell.rang",
        }
        (bell,) = [one async for one in other.delay.delayed() if one.key == "bell"]
        assert (bell.exchange, bell.message_id) == (f"{name}.bells", "m1")
        assert LATER <= bell.due - before + timedelta(milliseconds=1) <= LATER + timedelta(minutes=1)
        await other.delay.cancel("bell")
        assert "bell" not in await alarms.listed()


async def test_a_delay_of_zero_with_a_cancel_key_delivers_at_once(
    new_app: NewApp, name: str, open_store: OpenStore
) -> None:
    alarms = Alarms(new_app(), name, open_store())
    async with alarms.app:
        await alarms.delay_message("now", timedelta(0), "k")
        await eventually(lambda: alarms.received == ["now"], "it arrives")


async def delete_records(store: ListingStore, name: str) -> None:
    async for key, record in store.records("delay:"):
        if name in key:
            await store.compare_and_set(key, record, None, keep_ms=0)


async def test_a_message_without_a_record_in_the_store_is_delivered_and_counted(
    new_app: NewApp, name: str, open_store: OpenStore
) -> None:
    store = open_store()
    alarms = Alarms(new_app(), name, store)
    async with alarms.app:
        await alarms.due.pause()
        await alarms.delay_message("a", SOON, "k")
        await delete_records(store, name)
        await alarms.due.resume()
        await eventually(lambda: alarms.received == ["a"], "it arrives")
        await eventually(lambda: alarms.delay.statistics.unknown == 1, "it is counted")


async def test_a_message_that_is_due_after_its_record_expired_is_dead_lettered(
    new_app: NewApp, name: str, amqp_url: str, open_store: OpenStore
) -> None:
    """A message that may have been cancelled becomes a dead letter for people to judge."""
    store = open_store()
    alarms = Alarms(new_app(), name, store, keep=timedelta(0))
    async with alarms.app:
        await alarms.due.pause()
        await alarms.delay_message("a", SOON, "k")
        assert await alarms.delay.cancel("k") is Cancellation.CANCELLED
        await delete_records(store, name)
        await alarms.due.resume()
        dead = await take_one(amqp_url, f"{name}.delay.due.dead")
        assert "unknown whether it was cancelled" in str(dead.headers["warren-dead-error"])
        assert (dead.headers["warren-key"], alarms.received) == (f"{name}.bell", [])
        statistics = alarms.delay.statistics
        assert (statistics.forgotten, statistics.unknown) == (1, 0)


async def test_an_unroutable_delayed_message_is_dead_lettered_with_the_reason(
    new_app: NewApp, amqp_url: str, name: str, open_store: OpenStore
) -> None:
    app = new_app()
    delay = Delay(f"{name}.delay", strategy=STRATEGY, store=open_store())
    app.include(delay)
    app.declare(Exchange(f"{name}.nowhere"))
    async with app:
        await delay.after(b"{}", SOON, exchange=f"{name}.nowhere", key="k", cancel_key="k")
        dead = await take_one(amqp_url, f"{name}.delay.due.dead")
    assert str(dead.headers["warren-dead-error"]).startswith(("Unroutable", "PublishError"))
    assert (dead.headers["warren-exchange"], dead.headers["warren-key"]) == (f"{name}.nowhere", "k")
