"""The outbox on a broker and both databases: what is committed is published, in order per key, and nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from opentelemetry import metrics

from tests.patterns.conftest import NewApp
from tests.patterns.sql_sessions import Sessions, open_sessions, sqlite_url
from tests.support.async_client import take_one
from tests.support.polling import eventually
from warren.core.errors import UsageError
from warren.patterns import Outbox, TransactionalOnce
from warren.sdk import App, Command, ConfigError, Delivery, Event, Queue
from warren.testing import Warren


@pytest.fixture(params=["postgres", "sqlite"])
async def sessions(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Sessions]:
    if request.param == "postgres":
        opening = open_sessions(request.getfixturevalue("postgres_url"), f"t{uuid4().hex}")
    else:
        opening = open_sessions(sqlite_url(tmp_path))
    async with opening as opened:
        yield opened


class Shop:
    """A process with an outbox, and a handler that writes down what reaches its queue."""

    def __init__(self, app: App, sessions: Sessions, name: str, **settings: Any) -> None:
        class Placed(Event, exchange=f"{name}.orders", key="order.placed", audience=[f"{name}.audit"]):
            order: str
            number: int = 0

        self.app, self.sessions, self.placed = app, sessions, Placed
        self.outbox = Outbox(sessions, ordered_by=lambda event: str(event.order), **settings)
        self.seen: list[tuple[str, int]] = []
        self.ids: list[str | None] = []
        app.publishes(Placed)
        app.include(self.outbox)

        @app.handle(Placed, queue=f"{name}.audit", concurrency=1)
        async def audit(event: Any, delivery: Delivery) -> None:
            self.seen.append((event.order, event.number))
            self.ids.append(delivery.message_id)

    async def commit(self, *orders: tuple[str, int]) -> None:
        async with self.sessions.begin() as session:
            for order, number in orders:
                await self.outbox.add(session, self.placed(order=order, number=number))

    async def sees(self, count: int) -> None:
        await eventually(lambda: len(self.seen) >= count, f"{count} events arrive")


async def test_what_is_committed_is_published_and_what_is_rolled_back_is_not(
    sessions: Sessions, new_app: NewApp, name: str
) -> None:
    shop = Shop(new_app(), sessions, name, poll=timedelta(hours=1))
    async with shop.app:
        async with sessions() as session:
            await shop.outbox.add(session, shop.placed(order="no"))
            await session.rollback()
        await shop.commit(("yes", 1))
        await shop.sees(1)
        await shop.commit(("last", 1))
        await shop.sees(2)
        await eventually(lambda: shop.outbox.statistics.relayed == 2, "both are confirmed")
    assert shop.seen == [("yes", 1), ("last", 1)]
    assert await shop.outbox.lag() == timedelta(0)


async def test_a_session_that_commits_often_listens_once(
    sessions: Sessions, new_app: NewApp, name: str
) -> None:
    shop = Shop(new_app(), sessions, name, poll=timedelta(hours=1))
    async with shop.app, sessions() as session:
        for number in range(1, 4):
            await shop.outbox.add(session, shop.placed(order="a", number=number))
            await session.commit()
            await shop.sees(number)
        assert len(list(session.sync_session.dispatch.after_commit)) == 1


async def test_what_is_in_order_stays_in_order_and_the_rest_goes_beside(
    sessions: Sessions, new_app: NewApp, name: str
) -> None:
    shop = Shop(new_app(), sessions, name)
    async with shop.app:
        for start in range(0, 30, 10):
            await shop.commit(*((order, n) for n in range(start, start + 10) for order in ("a", "b", "c")))
        await shop.sees(90)
    for order in ("a", "b", "c"):
        assert [number for its, number in shop.seen if its == order] == list(range(30))


async def test_what_the_broker_refuses_holds_back_its_own_order_only(
    amqp_url: str, sessions: Sessions, new_app: NewApp, name: str
) -> None:
    shop = Shop(new_app(), sessions, name, retry_after=timedelta(milliseconds=50))
    missing = f"{name}.missing"
    async with shop.app:
        async with sessions.begin() as session:
            await shop.outbox.add(session, b"1", ordered_by="a", key=missing)
            await shop.outbox.add(session, shop.placed(order="a", number=2))
            await shop.outbox.add(session, shop.placed(order="b", number=3))
        await shop.sees(1)
        await eventually(lambda: shop.outbox.statistics.failed >= 2, "it is tried again")
        assert shop.seen == [("b", 3)]
        assert await shop.outbox.lag() > timedelta(0)
        await shop.app.declare_now(Queue(missing))
        await shop.sees(2)
        assert shop.seen == [("b", 3), ("a", 2)]
        assert (await take_one(amqp_url, missing)).body == b"1"


async def test_an_order_without_a_name_is_an_order(sessions: Sessions, new_app: NewApp, name: str) -> None:
    shop = Shop(new_app(), sessions, name, retry_after=timedelta(milliseconds=50))
    missing = f"{name}.missing"
    async with shop.app:
        async with sessions.begin() as session:
            await shop.outbox.add(session, b"1", ordered_by="", key=missing)
            await shop.outbox.add(session, shop.placed(order="", number=2), ordered_by="")
        await eventually(lambda: shop.outbox.statistics.failed >= 2, "it is tried again")
        assert shop.seen == []
        await shop.app.declare_now(Queue(missing))
        await shop.sees(1)


async def test_any_number_may_be_refused(sessions: Sessions) -> None:
    """More than a statement may have arguments: 32,767 in PostgreSQL, as a rule 32,766 in SQLite."""
    outbox = Outbox(sessions)
    async with sessions.begin() as session:
        for order in ("a", "b", None):
            await outbox.add(session, b"", ordered_by=order, key="q")
    refused = range(2, 33_002)
    found = await outbox._tables.pending(
        10, excluded_keys=["b", *map(str, refused)], excluded_ids=[1, *refused]
    )
    assert found == []
    found = await outbox._tables.pending(
        10, excluded_keys=["b", *map(str, refused)], excluded_ids=refused[2:]
    )
    assert [row.ordered_by for row in found] == ["a", None]


async def test_more_may_be_refused_than_is_remembered(
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
        await shop.sees(1)
        await eventually(lambda: shop.outbox.statistics.failed >= 21, "all are tried again")
        assert shop.seen == [("b", 3)]
        assert shop.outbox._relay is not None
        assert len(shop.outbox._relay._retry_times) <= 2
        await shop.app.declare_now(Queue(missing))
        await shop.sees(2)
        assert shop.seen == [("b", 3), ("6", 2)]
        await eventually(lambda: shop.outbox.statistics.relayed == 9, "nothing is left")


async def test_of_two_processes_one_relays_and_the_other_takes_over(
    sessions: Sessions, new_app: NewApp, name: str
) -> None:
    shops = [Shop(new_app(), sessions, name, lease=timedelta(seconds=30)) for _ in range(2)]

    def relaying() -> list[bool]:
        return [shop.outbox.statistics.relaying for shop in shops]

    async def relayed(count: int) -> None:
        """Wait for the confirm of what has arrived: a process that stopped now would leave it to the next one."""
        await eventually(
            lambda: sum(shop.outbox.statistics.relayed for shop in shops) == count, "so many are relayed"
        )

    async with shops[1].app:
        async with shops[0].app:
            await eventually(lambda: any(relaying()), "one relays")
            for number in range(20):
                await shops[number % 2].commit(("a", number))
            await eventually(lambda: sum(len(shop.seen) for shop in shops) == 20, "all arrive")
            assert sum(relaying()) == 1
            await relayed(20)
        await shops[1].commit(("a", 20))
        await eventually(lambda: relaying() == [False, True], "the other relays")
        await eventually(lambda: sum(len(shop.seen) for shop in shops) == 21, "and publishes")
        await relayed(21)


async def test_what_a_handler_returns_is_committed_with_its_work(
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
        await shop.sees(4)
        await shop.commit(("last", 0))
        await shop.sees(5)
    assert sorted(shop.seen) == [("a", 1), ("a", 2), ("b", 1), ("b", 2), ("last", 0)]


async def test_the_lag_is_what_the_oldest_has_waited(sessions: Sessions, new_app: NewApp, name: str) -> None:
    shop = Shop(new_app(), sessions, name, retry_after=timedelta(hours=1))
    async with shop.app:
        async with sessions.begin() as session:
            await shop.outbox.add(session, b"", ordered_by="x", key=f"{name}.missing")
        await eventually(lambda: shop.outbox.statistics.failed == 1, "it is refused")
        await eventually(lambda: sum(observed(shop.outbox)) > 0, "the lag grows")


async def test_a_test_on_virtual_time_waits_for_the_relay(warren: Warren, tmp_path: Path) -> None:
    async with open_sessions(sqlite_url(tmp_path)) as sessions:
        shop = Shop(App(), sessions, "virtual", poll=timedelta(days=1))
        async with warren.running(shop.app):
            await warren.settle()
            for number in range(3):
                await shop.commit(("a", number))
                await warren.settle()
                assert len(shop.seen) == number + 1


def observed(outbox: Outbox) -> list[float]:
    return [point.value for point in outbox._observe(metrics.CallbackOptions())]


async def test_wrong_use_is_said(sessions: Sessions, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="at least 1 ms"):
        Outbox(sessions, lease=timedelta(0))
    async with sessions() as session:
        with pytest.raises(ConfigError, match="JSON, which cannot represent"):
            await Outbox(sessions).add(session, b"", key="q", headers={"x": b""})  # type: ignore[dict-item]
        with pytest.raises(ConfigError, match="no address"):
            await Outbox(sessions).add(session, b"")
    monkeypatch.setattr("warren.patterns.optional_packages.find_spec", lambda _: None)
    with pytest.raises(UsageError, match=r"pip install 'warren\[sql\]'"):
        Outbox(sessions)
