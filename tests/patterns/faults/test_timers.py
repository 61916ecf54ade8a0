"""Timers in every fault, with a real Redis and workers that are killed."""

from __future__ import annotations

import asyncio
import random
import time
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.patterns.conftest import PATIENCE, NewApp
from tests.patterns.faults.matrix import Fault, Matrix
from tests.patterns.faults.scenarios import lose_confirm, lose_connection
from tests.patterns.faults.skewed_clock import SkewedClock
from tests.patterns.flaky_store import FlakyStore
from tests.patterns.timer_kills import Fleet, Ticks
from tests.support.broker_process import BrokerProcess
from tests.support.polling import eventually
from tests.support.processes import free_port
from tests.support.proxy import Proxy
from tests.support.redis import redis_server
from tests.support.worker_host import WorkerChannel
from tests.support.worker_processes import Workers
from warren.patterns import DateSchedule, IntervalSchedule, Once, RedisStore, Schedule, Timers
from warren.sdk import App, Command, Delivery

MATRIX = Matrix("timers", page="docs/patterns/timers.md")

LEASE = timedelta(milliseconds=600)
KILLS = 20


class Ring(Command, queue="replaced"):
    bell: str


@cache  # One class a queue: what it must reach is declared once.
def ring_in(queue_name: str) -> type[Ring]:
    class RingHere(Ring, queue=queue_name, type="ring"):
        pass

    return RingHere


def timers_of(
    name: str, redis: str, *schedules: Schedule, store: Any = None, lease: timedelta = LEASE
) -> Timers:
    kept = store or RedisStore(redis, prefix=f"{name}:", timeout=PATIENCE)
    return Timers(name, store=kept, sends=[ring_in(name)], schedules=schedules, lease=lease)


def soon(name: str, milliseconds: int = 0, bell: str = "tea") -> DateSchedule:
    return DateSchedule(
        bell, datetime.now(UTC) + timedelta(milliseconds=milliseconds), ring_in(name)(bell=bell)
    )


async def put(name: str, redis: str, schedule: Schedule) -> None:
    """Timers of a process that has no App."""
    async with RedisStore(redis, prefix=f"{name}:", timeout=PATIENCE) as store:
        await timers_of(name, redis, store=store).put(schedule)


class Tower:
    """An App that hears the bells, and has timers if it shall."""

    def __init__(self, app: App, name: str, timers: Timers | None, once: Once | None = None) -> None:
        self.app = app
        self.rang: list[str] = []
        self.ids: list[str | None] = []
        if timers is not None:
            app.include(timers)

        async def ring(command: Any, delivery: Delivery) -> None:
            self.rang.append(command.bell)
            self.ids.append(delivery.message_id)
            await self.after()

        app.handle(ring_in(name), once=once)(ring)

    async def after(self) -> None:
        """Run after the effect; tests override this."""

    async def hears(self, *bells: str) -> None:
        await eventually(lambda: all(bell in self.rang for bell in bells), f"{bells} ring, not {self.rang}")


async def keeper(
    worker: WorkerChannel, url: str, name: str, redis: str, after: int = 0, before: int = 0
) -> None:
    """Keep timers in a worker that stops at a change of a timer's record: 1, it begins; 2, it is published."""
    store = FlakyStore(RedisStore(redis, prefix=f"{name}:", timeout=PATIENCE), only="timer:")

    async def stop_before(change: int) -> None:
        if change == before:
            await worker.report_and_wait("stopped")

    async def stop_after(change: int) -> None:
        if change == after:
            await worker.report_and_wait("stopped")

    store.before, store.after = stop_before, stop_after  # type: ignore[method-assign]
    app = App(url)
    app.include(timers_of(name, redis, store=store))
    async with app:
        await worker.report_and_wait("ready")


async def replace_leader(
    url: str, redis: str, workers: Workers, tower: Tower, name: str, **stop: int
) -> None:
    """Kill the leader at the named point; another process takes over."""
    await put(name, redis, soon(name))
    doomed = await workers.start(keeper, url=url, name=name, redis=redis, **stop)
    await workers.wait_for("stopped")
    async with tower.app:
        doomed.kill()
        await tower.hears("tea")


@MATRIX.shows(
    Fault.CRASH_BEFORE_EFFECT,
    "when its lease has expired, another process publishes the interrupted time and all that follow",
)
async def test_the_leader_dies_before_it_publishes(
    amqp_url: str, redis_url: str, workers: Workers, new_app: NewApp, name: str
) -> None:
    tower = Tower(new_app(), name, timers_of(name, redis_url))
    await replace_leader(amqp_url, redis_url, workers, tower, name, after=1)
    assert tower.rang == ["tea"]


@MATRIX.shows(
    Fault.CRASH_AFTER_EFFECT,
    "when its lease has expired, another process publishes the same time again, with the same message id",
)
async def test_the_leader_dies_after_it_published(
    amqp_url: str, redis_url: str, workers: Workers, new_app: NewApp, name: str
) -> None:
    timers = timers_of(name, redis_url)
    tower = Tower(new_app(), name, timers)
    async with tower.app:
        await put(name, redis_url, soon(name))
        await tower.hears("tea")
        # What has arrived may not be confirmed yet, and who leads next would fire it again.
        await eventually(lambda: timers.statistics.fired == 1 and not timers.busy, "it is recorded")
    await put(name, redis_url, soon(name, bell="dinner"))
    other = Tower(new_app(), name, timers_of(name, redis_url))
    doomed = await workers.start(keeper, url=amqp_url, name=name, redis=redis_url, before=2)
    await workers.wait_for("stopped")
    async with other.app:
        doomed.kill()
        await eventually(lambda: other.rang.count("dinner") > 1, "it is published again")
    assert len(set(other.ids)) == 1


@MATRIX.shows(
    Fault.DUPLICATE,
    "both copies have the message id of that time; `Once` runs the handler once",
)
async def test_once_recognises_the_copy_of_a_dead_leader(
    amqp_url: str, redis_url: str, workers: Workers, new_app: NewApp, name: str
) -> None:
    once = Once(RedisStore(redis_url, prefix=f"{name}:once:", timeout=PATIENCE))
    tower = Tower(new_app(), name, timers_of(name, redis_url), once=once)
    await put(name, redis_url, soon(name))
    doomed = await workers.start(keeper, url=amqp_url, name=name, redis=redis_url, before=2)
    await workers.wait_for("stopped")
    async with tower.app:
        doomed.kill()
        await eventually(lambda: once.statistics.duplicates == 1, "the second is known")
    assert tower.rang == ["tea"]


@MATRIX.shows(
    Fault.LOST_ACK,
    "as with every message: it is redelivered with the same id, and `Once` recognises it",
)
async def test_the_acknowledgement_is_lost(amqp_url: str, redis_url: str, new_app: NewApp, name: str) -> None:
    once = Once(RedisStore(redis_url, prefix=f"{name}:once:", timeout=PATIENCE))
    keeping = new_app()
    keeping.include(timers_of(name, redis_url, soon(name)))
    async with Proxy(amqp_url) as proxy:
        tower = Tower(new_app(proxy.url), name, None, once=once)

        async def lose_acknowledgement() -> None:
            proxy.to_server.hold()

        tower.after = lose_acknowledgement  # type: ignore[method-assign]
        async with tower.app, keeping:
            await tower.hears("tea")
            await eventually(lambda: once.statistics.run == 1, "it is recorded")
            proxy.refuse()
            lose_connection(proxy)
            successor = Tower(new_app(), name, None, once=once)
            async with successor.app:
                await eventually(lambda: once.statistics.duplicates >= 1, "it comes again and is known")
    assert tower.rang == ["tea"]


MATRIX.spared(
    Fault.REORDERING,
    "each message has its scheduled time in `warren-timer-time`, by which a handler can restore the order",
)


@MATRIX.shows(
    Fault.LOST_CONFIRM,
    "the message is published again on the next connection, with the same message id",
)
async def test_the_confirm_is_lost(amqp_url: str, redis_url: str, new_app: NewApp, name: str) -> None:
    tower = Tower(new_app(), name, None)
    async with tower.app, Proxy(amqp_url) as proxy:
        keeping = new_app(proxy.url)
        timers = timers_of(name, redis_url, lease=timedelta(seconds=30))
        keeping.include(timers)
        async with keeping:
            await eventually(lambda: timers.is_leader, "it leads")
            await lose_confirm(proxy, timers.put(soon(name)), lambda: "tea" in tower.rang)
            await eventually(lambda: tower.rang.count("tea") > 1, "it comes again")
            await eventually(lambda: timers.statistics.fired == 1, "it is confirmed")
    assert len(set(tower.ids)) == 1


@MATRIX.shows(
    Fault.BROKER_RESTART,
    "messages that become due meanwhile are published when the broker is back, one for each time that is at most `late` "
    "behind",
)
async def test_the_broker_is_down_when_a_timer_is_due(
    mortal_broker: BrokerProcess, redis_url: str, name: str
) -> None:
    timers = timers_of(name, redis_url)
    tower = Tower(App(mortal_broker.url), name, timers)
    async with tower.app:
        await eventually(lambda: timers.is_leader, "it leads")
        await asyncio.to_thread(mortal_broker.kill)
        await timers.put(soon(name))
        await asyncio.to_thread(mortal_broker.start)
        await tower.hears("tea")


@MATRIX.shows(
    Fault.STORE_DOWN,
    "nothing is published meanwhile; afterwards one message is published for each time that is at most `late` behind, and "
    "one or none for all missed times, as the timer's `missed` requires",
)
async def test_the_store_is_down(amqp_url: str, new_app: NewApp, tmp_path: Path, name: str) -> None:
    port, clock = free_port(), SkewedClock(0.0)
    due = datetime.now(UTC) + timedelta(minutes=30)
    timers = timers_of(
        name,
        f"redis://127.0.0.1:{port}/0",
        IntervalSchedule("watch", timedelta(milliseconds=100), ring_in(name)(bell="watch")),
        DateSchedule("late", due, ring_in(name)(bell="late"), missed="catch_up"),
        DateSchedule("passed over", due, ring_in(name)(bell="passed over"), missed="skip"),
    )
    new_app().publishes(ring_in(name))
    tower = Tower(App(amqp_url, clock=clock), name, timers)
    async with tower.app:
        with redis_server(tmp_path, "--appendonly", "yes", port=port):
            await tower.hears("watch")
        await eventually(lambda: timers.statistics.outages > 0 or timers.statistics.failed > 0, "it notices")
        await eventually(lambda: not timers.is_leader, "nobody leads without a store")
        await outages_follow(timers)
        published = timers.statistics.fired
        clock.skew = 3600.0
        await outages_follow(timers)
        assert timers.statistics.fired == published
        assert "late" not in tower.rang
        with redis_server(tmp_path, "--appendonly", "yes", port=port):
            await tower.hears("late")
            await eventually(lambda: timers.statistics.skipped >= 1, "one is passed over")
            await eventually(lambda: timers.statistics.fired > published + 2, "it goes on")
            (watch,) = await timers.scheduled()
    assert watch.due > due
    assert tower.rang.count("late") == 1
    assert "passed over" not in tower.rang


async def outages_follow(timers: Timers) -> None:
    """Whatever it had begun is over, and it has looked for its store in vain again."""
    seen = timers.statistics.outages
    await eventually(lambda: timers.statistics.outages > seen, "it looks for its store again")


@MATRIX.shows(
    Fault.CLOCK_SKEW,
    "the lease does not depend on a common clock; the times are those of the clock of the publishing process",
)
async def test_a_follower_is_an_hour_ahead(amqp_url: str, redis_url: str, new_app: NewApp, name: str) -> None:
    lease = timedelta(seconds=30)
    leading, following = timers_of(name, redis_url, lease=lease), timers_of(name, redis_url, lease=lease)
    tower = Tower(new_app(), name, leading)
    ahead = App(amqp_url, clock=SkewedClock(3600))
    ahead.include(following)
    async with tower.app:
        await eventually(lambda: leading.is_leader, "it leads")
        async with ahead:
            due = datetime.now(UTC) + timedelta(minutes=30)
            await leading.put(DateSchedule("later", due, ring_in(name)(bell="later")))
            await leading.put(soon(name, 700))
            await tower.hears("tea")
            assert (leading.is_leader, following.is_leader) == (True, False)
    assert tower.rang == ["tea"]


@pytest.mark.slow
@pytest.mark.timeout(1200)
async def test_no_time_is_lost_under_kills_of_leader_and_broker(
    mortal_broker: BrokerProcess, redis_url: str, workers: Workers, name: str
) -> None:
    chance = random.Random(9)
    ticks = Ticks(App(mortal_broker.url), name)
    fleet = Fleet(workers, mortal_broker.url, name, redis_url, interval=0.1, lease=0.6)
    async with ticks.app:
        await fleet.start_process()
        await fleet.start_process()
        for kill in range(KILLS):
            await ticks.arrive(chance.randrange(1, 12))
            if kill % 2 == 0:
                await fleet.kill_leader()
                continue
            await asyncio.to_thread(mortal_broker.kill)
            if kill % 4 == 1:  # The leader dies while it cannot publish.
                await fleet.kill_leader()
            await asyncio.to_thread(mortal_broker.start)
        await ticks.arrive(10)
        await ticks.assert_complete(100, int(time.time() * 1000))
    assert len(fleet.killed) >= KILLS // 2
