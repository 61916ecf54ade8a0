"""Outbox on a broker and both databases: exactly the committed messages are published, in order per key."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import metrics

from tests.patterns.conftest import NewApp
from tests.patterns.sql_sessions import Sessions, open_sessions, sqlite_url
from tests.support.async_client import take_one
from tests.support.polling import eventually
from warren.broker import VirtualClock
from warren.core.errors import UsageError
from warren.patterns import Outbox, TransactionalOnce
from warren.sdk import App, Command, ConfigError, Delivery, Event, Queue
from warren.testing import Warren


class Shop:
    """A process with an outbox, and a handler that records the events that reach its queue."""

    def __init__(self, app: App, sessions: Sessions, name: str, **settings: Any) -> None:
        class Placed(Event, exchange=f"{name}.orders", key="order.placed", audience=[f"{name}.audit"]):
            order: str
            number: int = 0

        self.app, self.sessions, self.placed = app, sessions, Placed
        self.outbox = Outbox(sessions, ordered_by=lambda event: str(event.order), **settings)
        self.received: list[tuple[str, int]] = []
        self.ids: list[str | None] = []
        app.publishes(Placed)
        app.include(self.outbox)

        @app.handle(Placed, queue=f"{name}.audit", concurrency=1)
        async def audit(event: Any, delivery: Delivery) -> None:
            self.received.append((event.order, event.number))
            self.ids.append(delivery.message_id)

    async def commit(self, *orders: tuple[str, int]) -> None:
        async with self.sessions.begin() as session:
            for order, number in orders:
                await self.outbox.add(session, self.placed(order=order, number=number))

    async def wait_for_events(self, count: int) -> None:
        await eventually(lambda: len(self.received) >= count, f"{count} events arrive")


async def test_committed_messages_are_published_and_rolled_back_ones_are_not(
    sessions: Sessions, new_app: NewApp, name: str
) -> None:
    shop = Shop(new_app(), sessions, name, poll=timedelta(hours=1))
    async with shop.app:
        async with sessions() as session:
            await shop.outbox.add(session, shop.placed(order="no"))
            await session.rollback()
        await shop.commit(("yes", 1))
        await shop.wait_for_events(1)
        await shop.commit(("last", 1))
        await shop.wait_for_events(2)
        await eventually(lambda: shop.outbox.statistics.relayed == 2, "both are confirmed")
    assert shop.received == [("yes", 1), ("last", 1)]
    assert await shop.outbox.lag() == timedelta(0)


async def test_several_commits_of_one_session_register_one_listener(
    sessions: Sessions, new_app: NewApp, name: str
) -> None:
    shop = Shop(new_app(), sessions, name, poll=timedelta(hours=1))
    async with shop.app, sessions() as session:
        for number in range(1, 4):
            await shop.outbox.add(session, shop.placed(order="a", number=number))
            await session.commit()
            await shop.wait_for_events(number)
        assert len(list(session.sync_session.dispatch.after_commit)) == 1


async def test_messages_of_one_ordering_key_are_published_in_their_order(
    sessions: Sessions, new_app: NewApp, name: str
) -> None:
    shop = Shop(new_app(), sessions, name)
    async with shop.app:
        for start in range(0, 30, 10):
            await shop.commit(*((order, n) for n in range(start, start + 10) for order in ("a", "b", "c")))
        await shop.wait_for_events(90)
    for order in ("a", "b", "c"):
        assert [number for its, number in shop.received if its == order] == list(range(30))


async def test_a_refused_message_holds_back_only_its_own_ordering_key(
    amqp_url: str, sessions: Sessions, new_app: NewApp, name: str
) -> None:
    shop = Shop(new_app(), sessions, name, retry_after=timedelta(milliseconds=50))
    missing = f"{name}.missing"
    async with shop.app:
        async with sessions.begin() as session:
            await shop.outbox.add(session, b"1", ordered_by="a", key=missing)
            await shop.outbox.add(session, shop.placed(order="a", number=2))
            await shop.outbox.add(session, shop.placed(order="b", number=3))
        await shop.wait_for_events(1)
        await eventually(lambda: shop.outbox.statistics.failed >= 2, "it is tried again")
        assert shop.received == [("b", 3)]
        assert await shop.outbox.lag() > timedelta(0)
        await shop.app.declare_now(Queue(missing))
        await shop.wait_for_events(2)
        assert shop.received == [("b", 3), ("a", 2)]
        assert (await take_one(amqp_url, missing)).body == b"1"


async def test_an_event_that_nobody_listens_to_holds_nothing_back(
    sessions: Sessions, new_app: NewApp, name: str
) -> None:
    class Viewed(Event, exchange=f"{name}.orders", key="order.viewed"):
        pass

    shop = Shop(new_app(), sessions, name)
    async with shop.app:
        async with sessions.begin() as session:
            await shop.outbox.add(session, Viewed(), ordered_by="a")
            await shop.outbox.add(session, shop.placed(order="a", number=2))
        await shop.wait_for_events(1)
        await eventually(lambda: shop.outbox.statistics.relayed == 2, "both are confirmed")
    assert shop.outbox.statistics.failed == 0


async def test_the_empty_string_is_an_ordering_key(sessions: Sessions, new_app: NewApp, name: str) -> None:
    shop = Shop(new_app(), sessions, name, retry_after=timedelta(milliseconds=50))
    missing = f"{name}.missing"
    async with shop.app:
        async with sessions.begin() as session:
            await shop.outbox.add(session, b"1", ordered_by="", key=missing)
            await shop.outbox.add(session, shop.placed(order="", number=2), ordered_by="")
        await eventually(lambda: shop.outbox.statistics.failed >= 2, "it is tried again")
        assert shop.received == []
        await shop.app.declare_now(Queue(missing))
        await shop.wait_for_events(1)


async def test_any_number_of_messages_may_be_refused(sessions: Sessions) -> None:
    """More than a statement may have arguments: 32,767 in PostgreSQL, as a rule 32,766 in SQLite."""
    outbox = Outbox(sessions, relay=False)
    async with sessions.begin() as session:
        for order in ("a", "b", None):
            await outbox.add(session, b"", ordered_by=order, key="q")
    refused = range(2, 33_002)
    found = await outbox._tables.pending(
        10, excluded_keys=["b", *map(str, refused)], excluded_ids=[1, *refused]
    )
    assert found.rows == []
    found = await outbox._tables.pending(
        10, excluded_keys=["b", *map(str, refused)], excluded_ids=refused[2:]
    )
    assert [row.ordered_by for row in found.rows] == ["a", None]


async def test_more_messages_may_be_refused_than_have_a_retry_time_in_memory(
    sessions: Sessions, new_app: NewApp, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit, value in (("MAX_RETRY_TIMES", 2), ("BATCH", 3), ("MAX_RETRY_SECONDS", 0.05)):
        monkeypatch.setattr(f"warren.patterns.outbox.relay.{limit}", value, raising=False)
    shop = Shop(
        new_app(), sessions, name, retry_after=timedelta(milliseconds=20), poll=timedelta(milliseconds=10)
    )
    missing = f"{name}.missing"
    async with shop.app:
        async with sessions.begin() as session:
            for number in range(7):
                await shop.outbox.add(session, b"", ordered_by=str(number), key=missing)
            await shop.outbox.add(session, shop.placed(order="6", number=2))
            await shop.outbox.add(session, shop.placed(order="b", number=3))
        await shop.wait_for_events(1)
        await eventually(lambda: shop.outbox.statistics.failed >= 21, "all are tried again")
        assert shop.received == [("b", 3)]
        assert shop.outbox._relay is not None
        assert len(shop.outbox._relay._retry_times) <= 2
        await shop.app.declare_now(Queue(missing))
        await shop.wait_for_events(2)
        assert shop.received == [("b", 3), ("6", 2)]
        await eventually(lambda: shop.outbox.statistics.relayed == 9, "nothing is left")


async def test_of_two_processes_one_relays_and_the_other_takes_over(
    sessions: Sessions, new_app: NewApp, name: str
) -> None:
    shops = [Shop(new_app(), sessions, name, lease=timedelta(seconds=30)) for _ in range(2)]

    def relaying() -> list[bool]:
        return [shop.outbox.statistics.relaying for shop in shops]

    async def relayed(count: int) -> None:
        """Wait until `count` messages are confirmed: a process that stopped before would leave them to the next one."""
        await eventually(
            lambda: sum(shop.outbox.statistics.relayed for shop in shops) == count, f"{count} are relayed"
        )

    async with shops[1].app:
        async with shops[0].app:
            await eventually(lambda: any(relaying()), "one relays")
            for number in range(20):
                await shops[number % 2].commit(("a", number))
            await eventually(lambda: sum(len(shop.received) for shop in shops) == 20, "all arrive")
            assert sum(relaying()) == 1
            await relayed(20)
        await shops[1].commit(("a", 20))
        await eventually(lambda: relaying() == [False, True], "the other relays")
        await eventually(lambda: sum(len(shop.received) for shop in shops) == 21, "and publishes")
        await relayed(21)


async def test_a_lease_that_another_process_has_had_cannot_be_renewed(sessions: Sessions) -> None:
    tables = Outbox(sessions)._tables
    await tables.create()

    async def expire() -> None:
        async with sessions.begin() as session:
            await session.execute(tables.lease.update().values(until_ms=0))

    hour = 3_600_000
    assert not await tables.renew_lease("a", hour)
    assert await tables.take_lease("a", hour)
    await expire()
    assert await tables.renew_lease("a", hour), "nobody else has had it"
    assert not await tables.take_lease("b", hour), "the renewal counts from now"
    await expire()
    assert await tables.take_lease("b", hour)
    await tables.release_lease("b")
    assert not await tables.renew_lease("a", hour)
    assert await tables.take_lease("a", hour)


async def test_a_relay_that_could_not_renew_its_lease_takes_it_again_at_once(
    amqp_url: str, sessions: Sessions, new_app: NewApp, name: str
) -> None:
    clock = VirtualClock()
    shop = Shop(new_app(), sessions, name)
    blocked = App(amqp_url, clock=clock)
    outbox = Outbox(sessions)
    blocked.include(outbox)
    blocked.publishes(shop.placed)
    async with blocked:
        await eventually(lambda: outbox.statistics.relaying, "it relays")
        clock.jump(3600)  # As if the event loop had been blocked: no timer fires.
        async with sessions.begin() as session:
            await outbox.add(session, shop.placed(order="a"))
        await eventually(lambda: outbox.statistics.relayed == 1, "it is relayed")


async def test_messages_that_a_handler_returns_are_committed_with_its_transaction(
    sessions: Sessions, new_app: NewApp, name: str
) -> None:
    class Place(Command, queue=f"{name}.place"):
        order: str

    shop = Shop(new_app(), sessions, name)
    attempts: list[str] = []

    @shop.app.handle(Place, once=TransactionalOnce(sessions))
    @shop.outbox.publishes
    async def place(command: Place) -> list[Event]:
        attempts.append(command.order)
        if len(attempts) == 2:
            raise ConnectionError("this attempt is rolled back")
        return [shop.placed(order=command.order, number=n) for n in (1, 2)]

    async with shop.app:
        for order in ("a", "b"):
            await shop.app.publish(Place(order=order), message_id=order)
            await shop.app.publish(Place(order=order), message_id=order)
        await shop.wait_for_events(4)
        await shop.commit(("last", 0))
        await shop.wait_for_events(5)
    assert sorted(shop.received) == [("a", 1), ("a", 2), ("b", 1), ("b", 2), ("last", 0)]


async def test_the_lag_is_the_age_of_the_oldest_message(
    sessions: Sessions, new_app: NewApp, name: str
) -> None:
    shop = Shop(new_app(), sessions, name, retry_after=timedelta(hours=1))
    async with shop.app:
        async with sessions.begin() as session:
            await shop.outbox.add(session, b"", ordered_by="x", key=f"{name}.missing")
        await eventually(lambda: shop.outbox.statistics.failed == 1, "it is refused")
        await eventually(lambda: sum(observed_lag(shop.outbox)) > 0, "the lag grows")


async def test_a_test_on_virtual_time_waits_for_the_relay(warren: Warren, tmp_path: Path) -> None:
    async with open_sessions(sqlite_url(tmp_path)) as sessions:
        shop = Shop(App(), sessions, "virtual", poll=timedelta(days=1))
        async with warren.running(shop.app):
            await warren.settle()
            for number in range(3):
                await shop.commit(("a", number))
                await warren.settle()
                assert len(shop.received) == number + 1


async def test_on_virtual_time_the_relay_finds_what_another_process_commits(
    warren: Warren, tmp_path: Path
) -> None:
    async with open_sessions(sqlite_url(tmp_path)) as sessions:
        shop = Shop(App(), sessions, "virtual")
        elsewhere = Outbox(sessions, relay=False)
        async with warren.running(shop.app):
            for number in range(3):
                await warren.advance(hours=1)
                async with sessions.begin() as session:
                    await elsewhere.add(session, shop.placed(order="a", number=number))
                await warren.advance(milliseconds=200)
                assert len(shop.received) == number + 1


async def test_an_outbox_that_only_adds_relays_nothing(
    sessions: Sessions, new_app: NewApp, name: str
) -> None:
    app = new_app()
    adding = Outbox(sessions, relay=False)
    app.include(adding)
    async with app:
        async with sessions.begin() as session:
            await adding.add(session, b"", key=name)
        assert (adding.busy, adding.statistics.added, adding.statistics.relaying) == ("", 1, False)
    shop = Shop(new_app(), sessions, name)
    shop.app.declare(Queue(name))
    async with shop.app:
        await eventually(lambda: shop.outbox.statistics.relayed == 1, "another process relays it")


async def test_a_refused_message_is_retried_at_its_time_however_seldom_the_relay_polls(
    warren: Warren, tmp_path: Path
) -> None:
    async with open_sessions(sqlite_url(tmp_path)) as sessions:
        shop = Shop(App(), sessions, "virtual", poll=timedelta(days=1))
        async with warren.running(shop.app):
            async with sessions.begin() as session:
                await shop.outbox.add(session, b"", ordered_by="a", key="missing")
            await warren.advance(seconds=4)
            assert shop.outbox.statistics.failed == 3  # At once, after 1 s, and 2 s later.
            await warren.advance(minutes=30)
            assert shop.outbox.statistics.failed < 40


def observed_lag(outbox: Outbox) -> list[float]:
    return [point.value for point in outbox._observe(metrics.CallbackOptions())]


async def test_invalid_arguments_raise_errors(sessions: Sessions, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="at least 1 ms"):
        Outbox(sessions, lease=timedelta(0))
    async with sessions() as session:
        with pytest.raises(ConfigError, match="JSON, which cannot represent"):
            await Outbox(sessions, relay=False).add(session, b"", key="q", headers={"x": b""})  # type: ignore[dict-item]
        with pytest.raises(ConfigError, match="no address"):
            await Outbox(sessions, relay=False).add(session, b"")
        with pytest.raises(ConfigError, match="belongs to no App"):
            await Outbox(sessions).add(session, b"", key="q")
    monkeypatch.setattr("warren.patterns.optional_packages.find_spec", lambda _: None)
    with pytest.raises(UsageError, match=r"pip install 'warrenmq\[sql\]'"):
        Outbox(sessions)
