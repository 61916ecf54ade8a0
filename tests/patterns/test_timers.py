"""Timers on virtual time: when they fire, what is missed, who leads, and cron expressions around a change of the clocks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from tests.patterns.conftest import NewApp, OpenStore
from tests.patterns.flaky_store import FlakyStore
from tests.support.polling import eventually
from warren.patterns import CronSchedule, DateSchedule, IntervalSchedule, Schedule, SqliteStore, Timers
from warren.patterns.stores.store import ListingStore
from warren.patterns.timers.leader_election import LeaderElection
from warren.patterns.timers.schedules import next_time_ms, spec_of
from warren.sdk import App, Command, ConfigError, Delivery
from warren.sdk.clock import SystemClock
from warren.testing import Warren

HOUR = timedelta(hours=1)


class Ring(Command, queue="bells"):
    bell: str


class Unknown(Command, queue="unknown"):
    pass


@pytest.fixture
def store(tmp_path: Path) -> ListingStore:
    return SqliteStore(tmp_path / "timers.sqlite")


class House:
    """An App with timers and a bell, and what rang when."""

    def __init__(self, store: ListingStore, *schedules: Schedule, app: App | None = None) -> None:
        self.app = app or App()
        self.timers = Timers(
            "house", store=store, sends=[Ring], schedules=schedules, lease=timedelta(minutes=30)
        )
        self.app.include(self.timers)
        self.rang: list[tuple[str, datetime]] = []
        self.ids: list[str | None] = []

        @self.app.handle(Ring)
        async def ring(command: Ring, delivery: Delivery) -> None:
            self.rang.append((command.bell, datetime.fromtimestamp(self.app.clock.now(), UTC)))
            self.ids.append(delivery.message_id)


async def test_at_and_every_ring_at_their_times(warren: Warren, store: ListingStore) -> None:
    house = House(store)
    async with warren.running(house.app):
        began = warren.now
        await house.timers.put(DateSchedule("tea", began + 5 * HOUR, Ring(bell="tea")))
        await house.timers.put(IntervalSchedule("watch", 2 * HOUR, Ring(bell="watch")))
        await house.timers.put(DateSchedule("past", began - HOUR, Ring(bell="past")))
        await warren.advance(hours=6, minutes=1)
        assert [timer.name for timer in await house.timers.scheduled()] == ["watch"]
        assert (await house.timers.scheduled())[0].fired == 3
    times = [(bell, round((at - began) / HOUR, 2)) for bell, at in house.rang]
    assert times == [("past", 0.0), ("watch", 2.0), ("watch", 4.0), ("tea", 5.0), ("watch", 6.0)]
    assert len(set(house.ids)) == 5


async def test_what_is_cancelled_rings_no_more(warren: Warren, store: ListingStore) -> None:
    house = House(store, IntervalSchedule("watch", HOUR, Ring(bell="watch")))
    async with warren.running(house.app):
        await warren.advance(hours=2, minutes=1)
        assert await house.timers.cancel("watch")
        assert not await house.timers.cancel("watch")
        await warren.advance(hours=5)
        assert await house.timers.scheduled() == []
    assert len(house.rang) == 2


async def test_a_timer_that_is_put_again_goes_on_and_a_changed_one_takes_its_place(
    warren: Warren, store: ListingStore
) -> None:
    house = House(store)
    async with warren.running(house.app):
        assert await house.timers.put(IntervalSchedule("watch", 2 * HOUR, Ring(bell="old")))
        await warren.advance(hours=1)
        assert not await house.timers.put(IntervalSchedule("watch", 2 * HOUR, Ring(bell="old")))
        await warren.advance(hours=1, minutes=1)
        assert [bell for bell, _ in house.rang] == ["old"]
        assert await house.timers.put(IntervalSchedule("watch", 3 * HOUR, Ring(bell="new")))
        await warren.advance(hours=3, minutes=1)
    assert [bell for bell, _ in house.rang] == ["old", "new"]


async def test_a_time_of_the_schedules_that_has_rung_does_not_ring_at_the_next_start(
    warren: Warren, store: ListingStore
) -> None:
    house = House(store, DateSchedule("tea", datetime.now(UTC) - HOUR, Ring(bell="tea")))
    async with warren.running(house.app):
        for _ in range(3):
            await warren.advance(hours=3)
            assert await house.timers.scheduled() == []
            await house.app.stop()
            await house.app.start()
        assert [bell for bell, _ in house.rang] == ["tea"]
        assert not await house.timers.cancel("tea")
        assert await house.timers.put(DateSchedule("tea", warren.now, Ring(bell="another")))
        await warren.advance(minutes=1)
    assert [bell for bell, _ in house.rang] == ["tea", "another"]


async def test_who_puts_or_cancels_and_never_hears_the_answer_is_told_what_he_did(
    store: ListingStore,
) -> None:
    flaky = FlakyStore(store, only="timer:")
    timers = Timers("house", store=flaky, sends=[Ring])
    tea = DateSchedule("tea", datetime.now(UTC) + HOUR, Ring(bell="tea"))
    flaky.lose_answer_of = {1, 2}
    assert await timers.put(tea)
    assert not await timers.put(tea)
    assert await timers.cancel("tea")
    assert not await timers.cancel("tea")
    assert await timers.put(tea)
    assert [timer.name for timer in await timers.scheduled()] == ["tea"]
    await store.close()


@pytest.mark.parametrize("missed", ["catch_up", "skip"])
async def test_what_was_missed_rings_once_or_not_at_all(
    warren: Warren, store: ListingStore, missed: str
) -> None:
    schedule = IntervalSchedule(
        "watch", HOUR, Ring(bell="watch"), missed="skip" if missed == "skip" else "catch_up"
    )
    once = DateSchedule("tea", datetime.now(UTC) + 2 * HOUR, Ring(bell="tea"), missed=schedule.missed)
    house = House(store, schedule, once)
    async with warren.running(house.app):
        await warren.settle()
        await house.app.stop()
        await warren.advance(hours=5, minutes=30)
        await house.app.start()
        await warren.settle()
        late = sorted(bell for bell, _ in house.rang)
        assert late == ([] if missed == "skip" else ["tea", "watch"])
        await warren.advance(minutes=31)
    assert [bell for bell, _ in house.rang][len(late) :] == ["watch"]


async def test_one_of_two_leads_and_the_other_takes_over(
    warren: Warren, store: ListingStore, tmp_path: Path
) -> None:
    first = House(store, IntervalSchedule("watch", HOUR, Ring(bell="watch")))
    second = House(SqliteStore(tmp_path / "timers.sqlite"))
    async with warren.running(first.app, second.app):
        await warren.advance(hours=2, minutes=1)
        leads, follows = (first, second) if first.timers.is_leader else (second, first)
        assert (leads.timers.is_leader, follows.timers.is_leader) == (True, False)
        # What the one that follows puts is noticed by the one that leads.
        await follows.timers.put(DateSchedule("tea", warren.now + HOUR / 2, Ring(bell="tea")))
        await warren.advance(minutes=40)
        await leads.app.stop()
        await warren.advance(hours=2)
        assert follows.timers.is_leader
    rang = sorted(bell for house in (first, second) for bell, _ in house.rang)
    assert rang == ["tea"] + 4 * ["watch"]
    assert (leads.timers.statistics.fired, follows.timers.statistics.fired) == (3, 2)


@pytest.mark.parametrize("jump", [-3600, 3600])
async def test_the_lead_does_not_depend_on_the_time_that_a_machine_is_set_to(
    store: ListingStore, monkeypatch: pytest.MonkeyPatch, jump: int
) -> None:
    leads, follows = (LeaderElection(store, "lead", owner, lease=600, clock=SystemClock()) for owner in "ab")
    assert (await leads.heartbeat(0)).is_leader
    assert not (await follows.heartbeat(0)).is_leader
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + jump)
    assert not (await follows.heartbeat(0)).is_leader
    still = leads.is_leader
    # Without an answer of the store the lead ends in time, also if the machine's time went back.
    elapsed = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: elapsed() + 500)
    assert (still, leads.is_leader) == (True, False)
    monkeypatch.undo()
    await store.close()


async def test_many_timers_are_due_at_the_same_time(warren: Warren, store: ListingStore) -> None:
    house = House(store)
    async with warren.running(house.app):
        due = warren.now + HOUR
        for number in range(120):
            await house.timers.put(DateSchedule(f"{number}", due, Ring(bell=f"{number}")))
        await warren.advance(hours=1, seconds=1)
    assert sorted(bell for bell, _ in house.rang) == sorted(str(n) for n in range(120))


async def test_every_store_keeps_timers_for_another_process(
    new_app: NewApp, open_store: OpenStore, name: str
) -> None:
    class Bell(Command, queue=f"{name}.bells"):
        pass

    rang: list[str | None] = []
    outside = Timers(name, store=open_store(), sends=[Bell])
    await outside.put(DateSchedule("now", datetime.now(UTC), Bell()))
    app = new_app()
    app.include(Timers(name, store=open_store(), sends=[Bell], lease=timedelta(milliseconds=300)))

    @app.handle(Bell)
    async def bell(command: Bell, delivery: Delivery) -> None:
        assert delivery.headers["warren-timer"] in ("now", "soon")
        assert isinstance(delivery.headers["warren-timer-time"], int)
        rang.append(delivery.message_id)

    async with app:
        await eventually(lambda: len(set(rang)) == 1, "what was put before rings")
        await outside.put(DateSchedule("later", datetime.now(UTC) + HOUR, Bell()))

        async def only_later() -> bool:
            """Return whether only the later timer is listed; a fired one is listed until its confirm is recorded."""
            return [timer.name for timer in await outside.scheduled()] == ["later"]

        await eventually(only_later, "what waits is listed")
        await outside.put(DateSchedule("soon", datetime.now(UTC) + timedelta(milliseconds=50), Bell()))
        await eventually(lambda: len(set(rang)) == 2, "what another process puts rings")


def occurrences(cron: CronSchedule, start: datetime, count: int) -> Iterator[str]:
    at = int(start.timestamp() * 1000)
    for _ in range(count):
        following_ms = next_time_ms(spec_of(cron), 0, at)
        assert following_ms is not None
        at = following_ms
        yield datetime.fromtimestamp(at / 1000, ZoneInfo(cron.zone)).strftime("%m-%d %H:%M%z")


def test_a_cron_expression_keeps_its_hour_through_changes_of_the_clocks() -> None:
    def berlin(expression: str, month: int, day: int, hour: int) -> list[str]:
        start = datetime(2026, month, day, hour, tzinfo=ZoneInfo("Europe/Berlin"))
        return list(occurrences(CronSchedule("c", expression, Ring(bell=""), zone="Europe/Berlin"), start, 3))

    assert berlin("0 6 * * *", 3, 28, 5) == ["03-28 06:00+0100", "03-29 06:00+0200", "03-30 06:00+0200"]
    # 02:30 does not exist on the 29th of March, and comes twice on the 25th of October.
    assert berlin("30 2 * * *", 3, 28, 1) == ["03-28 02:30+0100", "03-29 03:00+0200", "03-30 02:30+0200"]
    assert berlin("30 2 * * *", 10, 24, 1) == ["10-24 02:30+0200", "10-25 02:30+0200", "10-26 02:30+0100"]
    assert berlin("0 * * * *", 10, 25, 1) == ["10-25 02:00+0200", "10-25 02:00+0100", "10-25 03:00+0100"]
    assert berlin("0 9 L * *", 1, 30, 0) == ["01-31 09:00+0100", "02-28 09:00+0100", "03-31 09:00+0200"]


def test_an_interval_does_not_drift() -> None:
    spec = {"every_ms": 1000}
    assert [next_time_ms(spec, 500, after) for after in (0, 500, 1499, 1500, 7777)] == [
        1500,
        1500,
        1500,
        2500,
        8500,
    ]


def test_wrong_use_is_said_in_one_line(store: ListingStore) -> None:
    with pytest.raises(ConfigError, match="no cron expression \\(Bad hour\\)"):
        CronSchedule("c", "0 25 * * *", Ring(bell=""))
    with pytest.raises(ConfigError, match="no time zone 'Mars/Base' on this machine"):
        CronSchedule("c", "0 2 * * *", Ring(bell=""), zone="Mars/Base")
    with pytest.raises(ConfigError, match="has no time zone"):
        DateSchedule("a", datetime(2026, 1, 1), Ring(bell=""))
    with pytest.raises(ConfigError, match="shorter than a millisecond"):
        IntervalSchedule("e", timedelta(0), Ring(bell=""))
    with pytest.raises(ConfigError, match="1 to 150 bytes"):
        IntervalSchedule("e" * 151, HOUR, Ring(bell=""))
    with pytest.raises(ConfigError, match="need a name"):
        Timers("", store=store, sends=[])
    with pytest.raises(ConfigError, match="at least 30 ms"):
        Timers("t", store=store, sends=[], lease=timedelta(0))
    with pytest.raises(ConfigError, match="not named in sends"):
        Timers("t", store=store, sends=[Ring], schedules=[IntervalSchedule("e", HOUR, Unknown())])


async def test_a_cron_expression_that_never_comes_is_refused(store: ListingStore) -> None:
    timers = Timers("t", store=store, sends=[Ring])
    with pytest.raises(ConfigError, match="Bad day-of-month"):
        await timers.put(CronSchedule("never", "0 0 30 2 *", Ring(bell="")))
    assert await timers.scheduled() == []
    await store.close()
