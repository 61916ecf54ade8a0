"""Half an hour of virtual time costs each pattern a few wake-ups, whatever its polls and heartbeats are in real time."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest
from pydantic import BaseModel

import warren.patterns
from tests.patterns.sql_sessions import Sessions, open_sessions, sqlite_url
from warren.broker import VirtualClock
from warren.patterns import (
    CatchAll,
    ClaimCheck,
    Deadline,
    Delay,
    DelayLadder,
    Encryption,
    FolderBlobStore,
    Immediate,
    IntervalSchedule,
    LocalRateLimiter,
    Once,
    Outbox,
    Partitions,
    RateLimit,
    Resequencer,
    RoutingSlipEnded,
    RoutingSlips,
    Saga,
    Signing,
    SqliteStore,
    Timers,
    TransactionalOnce,
    TransitionTo,
    WorkQueue,
)
from warren.sdk import App, Command, Event, Message, Retry
from warren.testing import Warren

HALF_AN_HOUR: Final = timedelta(minutes=30)
MAX_WAKE_UPS: Final = 20
"""Timers and polls that half an hour may fire, in which the pattern has nothing to do or one message waits."""


class Work(Command, queue="work"):
    key: str = "42"


class Item(Message):
    key: str = "42"


class Ended(RoutingSlipEnded, queue="ended"):
    pass


class Step(Command, queue="steps"):
    pass


class Happened(Event, exchange="happenings", key="happened"):
    key: str = "42"
    number: int = 0


class State(BaseModel):
    key: str


@dataclass
class Place:
    """App, database and folder of a scenario.

    :ivar folder: for stores.
    :ivar sessions: of an SQLite database.
    """

    app: App
    folder: Path
    sessions: Sessions

    def store(self) -> SqliteStore:
        return SqliteStore(self.folder / "store.sqlite", timeout=60)

    def handle_work(self, **options: Any) -> None:
        @self.app.handle(Work, **options)
        async def work(command: Work) -> None:
            pass


Use = Callable[[], Awaitable[object]]
Scenario = Callable[[Place], Use]
"""Sets up a pattern; returns a function that uses it once the App runs."""


def catch_all(place: Place) -> Use:
    pattern = CatchAll("happenings")
    place.app.include(pattern)
    return lambda: place.app.publish(b"", exchange=pattern.exchange.name, key="nobody")


def claim_check(place: Place) -> Use:
    place.app.include(ClaimCheck(FolderBlobStore(place.folder), threshold_bytes=1))
    place.handle_work()
    return lambda: place.app.publish(Work())


def dead_letter(place: Place) -> Use:
    @place.app.handle(Work)
    async def work(command: Work) -> None:
        raise ValueError("no")

    return lambda: place.app.publish(Work())


def deadline(place: Place) -> Use:
    pattern = Deadline(
        "unpaid", after=timedelta(minutes=29), signal=lambda key: Work(key=key), store=place.store()
    )
    place.app.include(pattern)
    place.handle_work()
    return lambda: pattern.start("42")


def delay(place: Place) -> Use:
    pattern = Delay()
    place.app.include(pattern)
    place.handle_work()
    return lambda: pattern.after(Work(), timedelta(minutes=29))


def delay_ladder(place: Place) -> Use:
    pattern = DelayLadder("ladder", "29m")
    place.app.include(pattern)

    @place.app.handle(Item, queue=pattern.queue("29m"))
    async def work(item: Item) -> None:
        pass

    return lambda: pattern.publish(Item(), "29m")


def encryption(place: Place) -> Use:
    place.app.include(Encryption({"a": bytes(32)}, current="a"))
    place.handle_work()
    return lambda: place.app.publish(Work())


def signing(place: Place) -> Use:
    place.app.include(Signing.hmac({"a": bytes(32)}, current="a"))
    place.handle_work()
    return lambda: place.app.publish(Work())


def immediate(place: Place) -> Use:
    pattern = Immediate("bell")
    place.app.include(pattern)

    @pattern.handle(Item)
    async def work(item: Item) -> None:
        pass

    return lambda: pattern.publish(Item())


def once(place: Place) -> Use:
    place.handle_work(once=Once(place.store()))
    return lambda: place.app.publish(Work())


def outbox(place: Place) -> Use:
    pattern = Outbox(place.sessions)
    place.app.include(pattern)
    place.handle_work()

    async def use() -> None:
        async with place.sessions.begin() as session:
            await pattern.add(session, Work())

    return use


def partitions(place: Place) -> Use:
    pattern = Partitions("orders", 4, key=lambda event: event.key)

    class Changed(Event, exchange=pattern.exchange):
        key: str = "42"

    @pattern.handle(Changed)
    async def change(event: Changed) -> None:
        pass

    place.app.include(pattern)
    return lambda: pattern.publish(Changed())


def rate_limit(place: Place) -> Use:
    place.app.include(RateLimit(LocalRateLimiter(1, per=timedelta(seconds=30)), queues=["work"]))
    place.handle_work()

    async def use() -> None:
        await place.app.publish(Work())
        await place.app.publish(Work())

    return use


def resequencer(place: Place) -> Use:
    pattern = Resequencer(
        "history", store=place.store(), key=lambda event: event.key, number=lambda event: event.number
    )

    @pattern.handle(Happened)
    async def change(event: Happened) -> None:
        pass

    place.app.include(pattern)

    async def use() -> None:
        await place.app.publish(Happened(number=1))
        await place.app.publish(Happened(number=3))

    return use


def retry(place: Place) -> Use:
    @place.app.handle(Work, retry=Retry(1).then("10m", "15m").on(ConnectionError))
    async def work(command: Work) -> None:
        raise ConnectionError("no")

    return lambda: place.app.publish(Work())


def routing_slip(place: Place) -> Use:
    pattern = RoutingSlips(steps=[Step], ends=[Ended])

    @pattern.step(Step)
    async def step(command: Step) -> None:
        pass

    place.app.include(pattern)
    return lambda: pattern.start([Step()], end=Ended)


def saga(place: Place) -> Use:
    pattern = Saga("checkout", State, store=place.store(), key="key", sends=[Work])

    @pattern.starts(Happened)
    def happened(event: Happened) -> TransitionTo[State]:
        return TransitionTo("waiting", State(key=event.key))

    @pattern.timeout("waiting", after=timedelta(minutes=29))
    def late(state: State) -> TransitionTo[State]:
        return TransitionTo("late", send=[Work()])

    place.app.include(pattern)
    place.handle_work()
    return lambda: place.app.publish(Happened())


def timers(place: Place) -> Use:
    pattern = Timers(
        "house",
        store=place.store(),
        sends=[Work],
        schedules=[IntervalSchedule("tick", timedelta(minutes=15), Work())],
    )
    place.app.include(pattern)
    place.handle_work()
    soon = timedelta(minutes=29)
    return lambda: pattern.put(IntervalSchedule("soon", soon, Work(key="soon")))


def transactional_once(place: Place) -> Use:
    place.handle_work(once=TransactionalOnce(place.sessions))
    return lambda: place.app.publish(Work())


def work_queue(place: Place) -> Use:
    pattern = WorkQueue("render", priorities=3)
    place.app.include(pattern)

    @pattern.handle(Item)
    async def work(item: Item) -> None:
        pass

    return lambda: pattern.put(Item(), priority=1)


SCENARIOS: Final[dict[str, Scenario]] = {
    "CatchAll": catch_all,
    "ClaimCheck": claim_check,
    "Deadline": deadline,
    "Delay": delay,
    "DelayLadder": delay_ladder,
    "Encryption": encryption,
    "Immediate": immediate,
    "Once": once,
    "Outbox": outbox,
    "Partitions": partitions,
    "RateLimit": rate_limit,
    "Resequencer": resequencer,
    "RoutingSlips": routing_slip,
    "Saga": saga,
    "Signing": signing,
    "Timers": timers,
    "TransactionalOnce": transactional_once,
    "WaitQueues": retry,
    "WorkQueue": work_queue,
    "dead letter": dead_letter,
}


@pytest.fixture
async def sessions(tmp_path: Path) -> AsyncIterator[Sessions]:
    async with open_sessions(sqlite_url(tmp_path)) as sessions:
        yield sessions


@pytest.mark.parametrize("name", SCENARIOS)
async def test_half_an_hour_costs_a_few_wake_ups(
    warren: Warren, tmp_path: Path, sessions: Sessions, name: str
) -> None:
    app = App()
    use = SCENARIOS[name](Place(app, tmp_path, sessions))
    async with warren.running(app):
        await use()
        await warren.settle()
        before = wake_ups(warren)
        await warren.advance(HALF_AN_HOUR)
        assert wake_ups(warren) - before <= MAX_WAKE_UPS
        before = wake_ups(warren)
        await warren.advance(HALF_AN_HOUR)
        assert wake_ups(warren) - before <= MAX_WAKE_UPS


def test_each_component_has_a_scenario() -> None:
    components = {
        name
        for name, member in vars(warren.patterns).items()
        if isinstance(member, type) and inspect.isfunction(member.__dict__.get("register"))
    }
    assert components - SCENARIOS.keys() == set()


def wake_ups(warren: Warren) -> int:
    clock = warren._environment.clock
    assert isinstance(clock, VirtualClock)
    return clock.fired
