"""Processes with timers that a test kills, and a consumer that checks which times were published."""

from __future__ import annotations

from collections import defaultdict
from datetime import timedelta
from itertools import pairwise
from typing import Any

from tests.patterns.conftest import PATIENCE
from tests.support.polling import eventually
from tests.support.worker_host import WorkerChannel
from tests.support.worker_processes import Worker, Workers
from warren.patterns import IntervalSchedule, ListingStore, RedisStore, SqliteStore, Timers
from warren.sdk import App, Command, Delivery

LATE = 600.0
"""Seconds, longer than any machine stands still: no time is missed."""


class Tick(Command, queue="replaced"):
    pass


def tick_in(queue_name: str) -> type[Tick]:
    class TickHere(Tick, queue=queue_name, type="tick"):
        pass

    return TickHere


def open_store(where: str) -> ListingStore:
    if where.startswith("redis:"):
        return RedisStore(where, prefix="timer-kills:", timeout=PATIENCE)
    return SqliteStore(where, timeout=PATIENCE)


async def keep_timers(
    worker: WorkerChannel,
    url: str,
    name: str,
    store: str,
    number: int,
    interval: float,
    lease: float,
    late: float,
) -> None:
    """Take part in the publishing of one timer; report `leader NUMBER` and `follower NUMBER` when that changes."""
    tick = tick_in(name)
    timers = Timers(
        name,
        store=open_store(store),
        sends=[tick],
        schedules=[IntervalSchedule("tick", timedelta(seconds=interval), tick())],
        lease=timedelta(seconds=lease),
        late=timedelta(seconds=late),
    )
    app = App(url, connect_timeout=300)  # the broker may be down
    app.include(timers)
    async with app:
        while True:
            await eventually(lambda: timers.is_leader, "it leads", seconds=3600)
            worker.report(f"leader {number}")
            await eventually(lambda: not timers.is_leader, "it no longer leads", seconds=3600)
            worker.report(f"follower {number}")


class Fleet:
    """Two processes with the same timers, of which the test kills the leader again and again."""

    def __init__(
        self,
        workers: Workers,
        url: str,
        name: str,
        store: str,
        *,
        interval: float,
        lease: float,
        late: float = LATE,
    ) -> None:
        self._workers = workers
        self._arguments: dict[str, Any] = {"url": url, "name": name, "store": store}
        self._arguments |= {"interval": interval, "lease": lease, "late": late}
        self._processes: dict[int, Worker] = {}
        self._started = 0
        self.killed: list[int] = []

    async def start_process(self) -> None:
        """Start one more process."""
        self._started += 1
        self._processes[self._started] = await self._workers.start(
            keep_timers, number=self._started, **self._arguments
        )

    def leader(self) -> int | None:
        """Return the number of the running process that leads by its own last report; None if none does.

        Only the reports of one process arrive in their order: those of two that took over from each other may not.
        """
        failed = [line for line in self._workers.reports if line.startswith("failed: ")]
        assert not failed, failed
        last = {int(number): role for role, number in map(str.split, self._workers.reports)}
        return next((number for number in self._processes if last.get(number) == "leader"), None)

    async def kill_leader(self) -> None:
        """Kill the leader as soon as there is one, with SIGKILL, and start another process in its place."""
        await eventually(lambda: self.leader() is not None, "a process leads")
        number = self.leader()
        assert number is not None
        self._processes.pop(number).kill()
        self.killed.append(number)
        await self.start_process()


class Ticks:
    """App that records the times of the ticks it receives, and their message ids."""

    def __init__(self, app: App, name: str) -> None:
        self.app = app
        self.ids: defaultdict[int, set[str | None]] = defaultdict(set)
        """Message ids by time, in milliseconds since the epoch."""

        async def record(tick: Any, delivery: Delivery) -> None:
            time_ms = delivery.headers["warren-timer-time"]
            assert isinstance(time_ms, int)
            self.ids[time_ms].add(delivery.message_id)

        app.handle(tick_in(name))(record)

    async def arrive(self, more: int) -> None:
        """Wait until this number of further times has arrived."""
        count = len(self.ids) + more
        await eventually(lambda: len(self.ids) >= count, f"{count} times arrive", seconds=300)

    async def assert_complete(self, interval_ms: int, until_ms: int) -> None:
        """Assert that each time from the first one to `until_ms` arrived, each under one message id."""
        await eventually(lambda: max(self.ids, default=0) >= until_ms, "the present arrives", seconds=300)
        first = min(self.ids)
        last = max(time_ms for time_ms in self.ids if time_ms <= until_ms)
        missing = [each for each in range(first, last + 1, interval_ms) if each not in self.ids]
        assert missing == [], f"{len(missing)} of {(last - first) // interval_ms + 1} times are missing"
        assert {after - before for before, after in pairwise(sorted(self.ids))} == {interval_ms}
        assert [ids for ids in self.ids.values() if len(ids) > 1] == []
