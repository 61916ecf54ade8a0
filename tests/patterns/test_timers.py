"""Timers on a virtual clock: firing, missed times, leadership, and cron expressions around daylight saving changes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from tests.patterns.conftest import NewApp, OpenStore
from tests.patterns.flaky_store import FlakyStore
from tests.support.polling import eventually
from warren.patterns import (
    CronSchedule,
    DateSchedule,
    IntervalSchedule,
    MissedPolicy,
    Schedule,
    SqliteStore,
    Timers,
)
from warren.patterns.stores.store import ListingStore, record_key
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


class RingingApp:
    """App with timers that records which bell was rung at which time."""

    def __init__(
        self, store: ListingStore, *schedules: Schedule, late: timedelta = timedelta(minutes=1)
    ) -> None:
        self.app = App()
        self.timers = Timers(
            "house", store=store, sends=[Ring], schedules=schedules, lease=timedelta(minutes=30), late=late
        )
        self.app.include(self.timers)
        self.rang: list[tuple[str, datetime]] = []
        self.ids: list[str | None] = []
        self.times: list[int] = []
        """Time for which each message was published, in milliseconds since the epoch."""

        @self.app.handle(Ring)
        async def ring(command: Ring, delivery: Delivery) -> None:
            self.rang.append((command.bell, datetime.fromtimestamp(self.app.clock.now(), UTC)))
            self.ids.append(delivery.message_id)
            self.times.append(int(delivery.headers["warren-timer-time"]))


async def test_date_and_interval_schedules_fire_at_their_times(warren: Warren, store: ListingStore) -> None:
    ringing = RingingApp(store)
    async with warren.running(ringing.app):
        began = warren.now
        await ringing.timers.put(DateSchedule("tea", began + 5 * HOUR, Ring(bell="tea")))
        await ringing.timers.put(IntervalSchedule("watch", 2 * HOUR, Ring(bell="watch")))
        await ringing.timers.put(DateSchedule("past", began - HOUR, Ring(bell="past")))
        await warren.advance(hours=6, minutes=1)
        assert [timer.name for timer in await ringing.timers.scheduled()] == ["watch"]
        assert (await ringing.timers.scheduled())[0].fired == 3
    times = [(bell, round((at - began) / HOUR, 2)) for bell, at in ringing.rang]
    assert times == [("past", 0.0), ("watch", 2.0), ("watch", 4.0), ("tea", 5.0), ("watch", 6.0)]
    assert len(set(ringing.ids)) == 5


async def test_a_cancelled_timer_does_not_fire(warren: Warren, store: ListingStore) -> None:
    ringing = RingingApp(store, IntervalSchedule("watch", HOUR, Ring(bell="watch")))
    async with warren.running(ringing.app):
        await warren.advance(hours=2, minutes=1)
        assert await ringing.timers.cancel("watch")
        assert not await ringing.timers.cancel("watch")
        await warren.advance(hours=5)
        assert await ringing.timers.scheduled() == []
    assert len(ringing.rang) == 2


async def test_putting_an_equal_timer_changes_nothing_and_a_different_one_replaces_it(
    warren: Warren, store: ListingStore
) -> None:
    ringing = RingingApp(store)
    async with warren.running(ringing.app):
        assert await ringing.timers.put(IntervalSchedule("watch", 2 * HOUR, Ring(bell="old")))
        await warren.advance(hours=1)
        assert not await ringing.timers.put(IntervalSchedule("watch", 2 * HOUR, Ring(bell="old")))
        await warren.advance(hours=1, minutes=1)
        assert [bell for bell, _ in ringing.rang] == ["old"]
        assert await ringing.timers.put(IntervalSchedule("watch", 3 * HOUR, Ring(bell="new")))
        await warren.advance(hours=3, minutes=1)
    assert [bell for bell, _ in ringing.rang] == ["old", "new"]


async def test_a_date_of_the_schedules_fires_once_over_several_starts(
    warren: Warren, store: ListingStore
) -> None:
    ringing = RingingApp(store, DateSchedule("tea", datetime.now(UTC) - HOUR, Ring(bell="tea")))
    async with warren.running(ringing.app):
        for _ in range(3):
            await warren.advance(hours=3)
            assert await ringing.timers.scheduled() == []
            await ringing.app.stop()
            await ringing.app.start()
        assert [bell for bell, _ in ringing.rang] == ["tea"]
        assert not await ringing.timers.cancel("tea")
        assert await ringing.timers.put(DateSchedule("tea", warren.now, Ring(bell="another")))
        await warren.advance(minutes=1)
    assert [bell for bell, _ in ringing.rang] == ["tea", "another"]


async def test_put_and_cancel_return_the_right_result_after_a_lost_answer_of_the_store(
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
async def test_missed_times_fire_once_or_are_skipped(
    warren: Warren, store: ListingStore, missed: str
) -> None:
    schedule = IntervalSchedule(
        "watch", HOUR, Ring(bell="watch"), missed="skip" if missed == "skip" else "catch_up"
    )
    once = DateSchedule("tea", datetime.now(UTC) + 2 * HOUR, Ring(bell="tea"), missed=schedule.missed)
    ringing = RingingApp(store, schedule, once)
    async with warren.running(ringing.app):
        await warren.settle()
        await ringing.app.stop()
        await warren.advance(hours=5, minutes=30)
        await ringing.app.start()
        await warren.settle()
        late = sorted(bell for bell, _ in ringing.rang)
        assert late == ([] if missed == "skip" else ["tea", "watch"])
        await warren.advance(minutes=31)
    assert [bell for bell, _ in ringing.rang][len(late) :] == ["watch"]


@pytest.mark.parametrize(("missed", "published"), [("catch_up", 31), ("skip", 30), ("coalesce", 1)])
async def test_each_time_that_is_less_than_late_behind_is_published(
    warren: Warren, store: ListingStore, missed: MissedPolicy, published: int
) -> None:
    """No process runs for 90 s. 30 times are at most `late` behind: of the others `catch_up` publishes one."""
    ringing = RingingApp(store, late=timedelta(seconds=29))
    async with warren.running(ringing.app):
        await ringing.timers.put(
            IntervalSchedule("watch", timedelta(seconds=1), Ring(bell="watch"), missed=missed)
        )
        await ringing.app.stop()
        await warren.advance(seconds=90)
        await ringing.app.start()
        await warren.settle()
        assert len(ringing.times) == published
        await warren.advance(seconds=10)
    assert len(ringing.ids) == len(set(ringing.ids)) == published + 10
    in_order = sorted(ringing.times)
    assert ringing.times == in_order
    contiguous = in_order if missed == "skip" else in_order[1:]
    assert {after - before for before, after in pairwise(contiguous)} == {1000}


async def test_each_time_is_published_after_publishes_have_failed(
    warren: Warren, store: ListingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    ringing = RingingApp(store)
    async with warren.running(ringing.app):
        await ringing.timers.put(IntervalSchedule("watch", timedelta(seconds=1), Ring(bell="watch")))
        with monkeypatch.context() as patch:

            async def refuse(*_: object, **__: object) -> None:
                raise ConnectionError("the broker is down")

            patch.setattr(ringing.app, "publish", refuse)
            await warren.advance(seconds=5.5)
        assert ringing.times == []
        await warren.advance(seconds=2)
    assert {after - before for before, after in pairwise(ringing.times)} == {1000}
    assert len(set(ringing.ids)) == len(ringing.ids) == 7


@pytest.mark.parametrize("cancelling", ["running", "outside"])
async def test_a_cancelled_schedule_stays_cancelled_until_it_changes(
    warren: Warren, store: ListingStore, cancelling: str
) -> None:
    ringing = RingingApp(store, IntervalSchedule("watch", HOUR, Ring(bell="watch")))
    async with warren.running(ringing.app):
        await warren.advance(hours=1, minutes=1)
        canceller = ringing.timers if cancelling == "running" else Timers("house", store=store, sends=[Ring])
        assert await canceller.cancel("watch")
        for _ in range(2):
            await ringing.app.stop()
            await ringing.app.start()
            await warren.advance(hours=3)
        assert (len(ringing.rang), await ringing.timers.scheduled()) == (1, [])
    changed = RingingApp(store, IntervalSchedule("watch", HOUR, Ring(bell="new watch")))
    async with warren.running(changed.app):
        await warren.advance(hours=1, minutes=1)
        assert [bell for bell, _ in changed.rang] == ["new watch"]
    # The first version is still cancelled when an old process starts again, and put() stores it again.
    ringing.rang.clear()
    async with warren.running(ringing.app):
        await warren.advance(hours=1, minutes=1)
        assert {bell for bell, _ in ringing.rang} == {"new watch"}
        assert await ringing.timers.put(IntervalSchedule("watch", HOUR, Ring(bell="watch")))
        await ringing.app.stop()
        await ringing.app.start()
        await warren.advance(hours=1, minutes=1)
        assert ringing.rang[-1][0] == "watch"


async def test_a_timer_that_is_cancelled_and_put_again_is_published_once(
    warren: Warren, store: ListingStore
) -> None:
    ringing = RingingApp(store)
    async with warren.running(ringing.app):
        tea = DateSchedule("tea", warren.now + HOUR, Ring(bell="tea"))
        for _ in range(3):
            await ringing.timers.put(tea)
            await warren.settle()
            await ringing.timers.cancel("tea")
            await warren.settle()
        await ringing.timers.put(tea)
        await warren.advance(hours=2)
    assert [bell for bell, _ in ringing.rang] == ["tea"]
    assert ringing.timers.statistics.fired == 1


async def test_one_process_is_the_leader_and_the_other_takes_over(
    warren: Warren, store: ListingStore, tmp_path: Path
) -> None:
    first = RingingApp(store, IntervalSchedule("watch", HOUR, Ring(bell="watch")))
    second = RingingApp(SqliteStore(tmp_path / "timers.sqlite"))
    async with warren.running(first.app, second.app):
        await warren.advance(hours=2, minutes=1)
        leader, follower = (first, second) if first.timers.is_leader else (second, first)
        assert (leader.timers.is_leader, follower.timers.is_leader) == (True, False)
        # The leader notices a timer that the follower stores.
        await follower.timers.put(DateSchedule("tea", warren.now + HOUR / 2, Ring(bell="tea")))
        await warren.advance(minutes=40)
        await leader.app.stop()
        await warren.advance(hours=2)
        assert follower.timers.is_leader
    rang = sorted(bell for ringing in (first, second) for bell, _ in ringing.rang)
    assert rang == ["tea"] + 4 * ["watch"]
    assert (leader.timers.statistics.fired, follower.timers.statistics.fired) == (3, 2)


async def test_on_virtual_time_a_process_takes_over_from_a_dead_leader(
    warren: Warren, store: ListingStore
) -> None:
    ringing = RingingApp(store, IntervalSchedule("watch", HOUR, Ring(bell="watch")))
    dead = LeaderElection(
        store, record_key("timers", "house", "lead"), "dead", lease=1800, clock=SystemClock()
    )
    await dead.heartbeat(0)
    async with warren.running(ringing.app):
        await warren.settle()
        assert ringing.timers.statistics.elections == 0
        await warren.advance(minutes=59)
        assert ringing.timers.statistics.elections == 1
        await warren.advance(hours=2)
    assert len(ringing.rang) == 2


@pytest.mark.parametrize("jump", [-3600, 3600])
async def test_the_leadership_does_not_depend_on_the_wall_clock(
    store: ListingStore, monkeypatch: pytest.MonkeyPatch, jump: int
) -> None:
    leader, follower = (
        LeaderElection(store, "lead", owner, lease=600, clock=SystemClock()) for owner in "ab"
    )
    assert (await leader.heartbeat(0)).is_leader
    assert not (await follower.heartbeat(0)).is_leader
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + jump)
    assert not (await follower.heartbeat(0)).is_leader
    still = leader.is_leader
    # Without an answer of the store the lead ends in time, also if the machine's time went back.
    elapsed = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: elapsed() + 500)
    assert (still, leader.is_leader) == (True, False)
    monkeypatch.undo()
    await store.close()


async def test_many_timers_that_are_due_at_the_same_time_all_fire(
    warren: Warren, store: ListingStore
) -> None:
    ringing = RingingApp(store)
    async with warren.running(ringing.app):
        due = warren.now + HOUR
        for number in range(120):
            await ringing.timers.put(DateSchedule(f"{number}", due, Ring(bell=f"{number}")))
        await warren.advance(hours=1, seconds=1)
    assert sorted(bell for bell, _ in ringing.rang) == sorted(str(n) for n in range(120))


async def test_timers_that_one_process_stores_fire_in_another(
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
        await eventually(lambda: len(set(rang)) == 1, "the timer that was stored before the start fires")
        await outside.put(DateSchedule("later", datetime.now(UTC) + HOUR, Bell()))

        async def only_later() -> bool:
            """Return whether only the later timer is listed; a fired one is listed until its confirm is recorded."""
            return [timer.name for timer in await outside.scheduled()] == ["later"]

        await eventually(only_later, "only the waiting timer is listed")
        await outside.put(DateSchedule("soon", datetime.now(UTC) + timedelta(milliseconds=50), Bell()))
        await eventually(lambda: len(set(rang)) == 2, "a timer that another process stores fires")


def occurrences(cron: CronSchedule, start: datetime, count: int) -> Iterator[str]:
    at = int(start.timestamp() * 1000)
    for _ in range(count):
        following_ms = next_time_ms(spec_of(cron), 0, at)
        assert following_ms is not None
        at = following_ms
        yield datetime.fromtimestamp(at / 1000, ZoneInfo(cron.zone)).strftime("%m-%d %H:%M%z")


def test_a_cron_expression_keeps_its_hour_over_daylight_saving_changes() -> None:
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


def test_invalid_arguments_raise_config_errors(store: ListingStore) -> None:
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


async def test_a_cron_expression_without_any_date_is_rejected(store: ListingStore) -> None:
    timers = Timers("t", store=store, sends=[Ring])
    with pytest.raises(ConfigError, match="Bad day-of-month"):
        await timers.put(CronSchedule("never", "0 0 30 2 *", Ring(bell="")))
    assert await timers.scheduled() == []
    await store.close()
