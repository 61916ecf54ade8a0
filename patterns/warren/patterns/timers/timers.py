"""Timers: messages that are published at a time, every so often, or as a cron expression says; kept in a store, listed and
cancelled by name.

Guarantees: of all processes that include the same Timers one publishes, and another takes over when it dies. Each time of a
timer is published at least once, with the same message id by whomever and however often, so that `Once` makes its effect
happen once. What was missed because nobody was there is published once, late, or passed over, as the timer says. Of
`cancel` and a time that comes, one wins: when it returns True, no time is published that had not come.

**Whose time counts**: the clock of the process that leads. The lead itself depends on no clock that two machines share.

Costs: a record a timer, one decision of the store each third of a lease for each process, and two decisions and one publish
each time.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import logging
import secrets
from collections.abc import AsyncIterator, Sequence
from contextvars import Context
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final

from warren.patterns.stores import StoreUnavailable, apply_rule, apply_rule_with_retry, record_key
from warren.patterns.stores.store import ListingStore
from warren.patterns.timers import rules as rules
from warren.patterns.timers.leader_election import LeaderElection, monotonic_time
from warren.patterns.timers.rules import Timer
from warren.patterns.timers.schedules import DateSchedule, Schedule, following, spec_of, words
from warren.sdk import App, Clock, ConfigError, Message, SystemClock

log: logging.Logger = logging.getLogger("warren.patterns")

TIME: Final = "warren-timer-time"
"""Header: the time that the message is for, in Unix milliseconds; a message that is late says so by it."""
NAME: Final = "warren-timer"
AT_A_TIME: Final = 100
RETRY_MS: Final = 1000


@dataclass(slots=True)
class TimersStatistics:
    """What this process has done; others count their own."""

    fired: int = 0
    """Publishes that the broker confirmed."""
    skipped: int = 0
    """Times that were passed over, because they were missed and the timer says `skip`, or another process had them."""
    failed: int = 0
    """Publishes that failed, and are tried again."""
    led: int = 0
    """How often this process took the lead."""
    outages: int = 0
    """How often the store did not answer."""


@dataclass(frozen=True, slots=True)
class TimerInfo:
    """One timer as `timers.listed()` shows it.

    :ivar schedule: in words: `once`, `every 0:05:00`, `0 6 * * * (Europe/Berlin)`.
    :ivar message: the type of its message.
    :ivar fired: how often it was published.
    """

    name: str
    schedule: str
    due: datetime
    message: str
    body: str
    missed: str
    fired: int


class Timers:
    """`app.include(timers)` in every process that may publish; one that only puts and cancels needs no App.

    :param name: of this set of timers in the store.
    :param store: shared by all processes: `RedisStore`, `PostgresStore`, or `SqliteStore` on one machine.
    :param sends: the classes of all messages that timers publish; their topology is declared at start.
    :param schedules: put when the App starts; an `DateSchedule` that was published is not put again. What is no longer among them
        stays until it is cancelled.
    :param lease: how long after the death of who leads another takes over; a timer that another process puts is noticed
        within a third of it. Default 15 s.
    :param late: from how late on a time counts as missed. Default 1 minute, so that an ordinary takeover is none.
    :param patience: how long `put` and `cancel` wait for a store that fails. Default 10 s.
    :raises ConfigError: the name is empty, a duration too short, or the message of a schedule is not in `sends`.
    """

    def __init__(
        self,
        name: str,
        *,
        store: ListingStore,
        sends: Sequence[type[Message]],
        schedules: Sequence[Schedule] = (),
        lease: timedelta = timedelta(seconds=15),
        late: timedelta = timedelta(minutes=1),
        patience: timedelta = timedelta(seconds=10),
    ) -> None:
        if not name:
            raise ConfigError("Timers need a name: their records in the store carry it")
        if lease < timedelta(milliseconds=30) or late < timedelta(0):
            raise ConfigError(f"Timers {name}: lease ({lease}) is at least 30 ms, late ({late}) not negative")
        self.name: str = name
        self.statistics: TimersStatistics = TimersStatistics()
        self._store = store
        self._sends = {kind.wire_type: kind for kind in sends}
        self._schedules = tuple(schedules)
        self._lease = lease.total_seconds()
        self._late_ms = late // timedelta(milliseconds=1)
        self._patience = patience.total_seconds()
        self._clock: Clock = SystemClock()
        self._app: App | None = None
        self._lead = self._new_lead()
        self._revision = -1
        self._known: dict[str, Timer] = {}
        self._queue: list[tuple[int, int, str]] = []
        """When to look, the time that it is for, and the timer."""
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._told = self._working = False
        for schedule in self._schedules:
            self._type_of(schedule.message)

    @property
    def leading(self) -> bool:
        """Whether this process is the one that publishes."""
        return self._lead.leading

    @property
    def busy(self) -> str:
        """What it is working on in the background; empty if it waits."""
        return f"the timers {self.name}" if self._working else ""

    async def put(self, schedule: Schedule) -> bool:
        """Put a timer, in the place of one of the same name; False if the same one is there: it goes on as it is.

        False, too, if it was published already: within the last hour, or one of `schedules` ever.

        :raises ConfigError: its message is not in `sends`.
        :raises StoreUnavailable: it is not known whether it was put; put it again.
        """
        return await self._put(schedule, standing=False)

    async def _put(self, schedule: Schedule, *, standing: bool) -> bool:
        now_ms, spec = self._now_ms(), spec_of(schedule)
        kind, body = self._type_of(schedule.message), schedule.message.model_dump_json(by_alias=True)
        next_ms = spec["at_ms"] if isinstance(schedule, DateSchedule) else following(spec, now_ms, now_ms)
        if next_ms is None:
            raise ConfigError(f"timer {schedule.name!r} has no time in the future")
        timer = Timer(
            schedule.name,
            spec,
            kind,
            body,
            schedule.missed,
            now_ms,
            next_ms,
            token=secrets.token_hex(8),
            standing=standing,
        )
        done = await apply_rule_with_retry(
            self._store,
            self._key(schedule.name),
            partial(rules.put, timer=timer, now_ms=now_ms),
            clock=self._clock,
            patience=self._patience,
        )
        await self._tell(schedule.name)
        return done

    async def cancel(self, name: str) -> bool:
        """Take a timer away; True: no time will be published that has not come yet.

        False: there is none, or its only time has come.

        :raises StoreUnavailable: it is not known whether it was cancelled; cancel it again.
        """
        done = await apply_rule_with_retry(
            self._store,
            self._key(name),
            partial(rules.cancel, token=secrets.token_hex(8)),
            clock=self._clock,
            patience=self._patience,
        )
        await self._tell(name)
        return done

    async def listed(self) -> Sequence[TimerInfo]:
        """All timers that have a time to come, those that are due first at the top.

        :raises StoreUnavailable: the store did not answer.
        """
        found = sorted(
            [timer async for timer in self._stored()], key=lambda timer: (timer.next_ms, timer.name)
        )
        return [
            TimerInfo(
                timer.name,
                words(timer.spec),
                datetime.fromtimestamp(timer.next_ms / 1000, UTC),
                timer.type,
                timer.body,
                timer.missed,
                timer.fired,
            )
            for timer in found
            if not (timer.firing and "at_ms" in timer.spec)
        ]

    def register(self, app: App) -> None:
        self._app = app
        self._clock = app.clock
        self._lead = self._new_lead()
        app.publishes(*self._sends.values())

    async def on_start(self) -> None:
        """Begin to watch, in the background; the schedules are put there too."""
        self._wake = asyncio.Event()
        self._working = True
        # A context of its own: nothing of who started the App belongs to what timers do later.
        self._task = asyncio.create_task(self._run(), name=f"timers {self.name}", context=Context())

    async def on_stop(self) -> None:
        """End, let another lead at once, and close the store."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._working = False
        self._forget()
        with contextlib.suppress(StoreUnavailable):
            await self._lead.leave()
        await self._store.close()

    async def _run(self) -> None:
        pending = list(self._schedules)
        beaten = float("-inf")
        while True:
            try:
                while pending:
                    await self._put(pending[0], standing=True)
                    pending.pop(0)
                if self._told or monotonic_time(self._clock) - beaten >= self._lease / 3:
                    self._told, beaten = False, monotonic_time(self._clock)
                    await self._beat()
                if self.leading:
                    await self._fire_due()
            except StoreUnavailable as error:
                self.statistics.outages += 1
                log.warning("timers.store_unavailable name=%s error=%s", self.name, error)
            await self._sleep(beaten + self._lease / 3 - monotonic_time(self._clock))

    async def _sleep(self, seconds: float) -> None:
        """Until the next beat, or the next timer, or news of this process."""
        until = self._clock.now() + seconds
        if self.leading and self._queue:
            until = min(until, self._queue[0][0] / 1000)
        alarm = self._clock.call_at(max(until, self._clock.now() + 0.001), self._wake_up)
        self._working = self._told
        try:
            await self._wake.wait()
        finally:
            self._wake.clear()
            alarm.cancel()
            self._working = True

    def _wake_up(self) -> None:
        self._working = True
        self._wake.set()

    async def _beat(self) -> None:
        """Lead or follow; who leads learns what others have put and cancelled."""
        heartbeat = await self._lead.heartbeat(self._revision)
        if not heartbeat.leading:
            self._forget()
            return
        if self._revision < 0:
            self.statistics.led += 1
            log.info("timers.leading name=%s token=%d", self.name, heartbeat.head.token)
        if self._revision < 0 or heartbeat.changed is None:
            self._forget()
            async for timer in self._stored():
                self._know(timer)
        else:
            for name in dict.fromkeys(heartbeat.changed):
                await self._learn(name)
        self._revision = heartbeat.head.revision

    async def _fire_due(self) -> None:
        while self.leading:
            due: list[Timer] = []
            while self._queue and self._queue[0][0] <= self._now_ms() and len(due) < AT_A_TIME:
                _, next_ms, name = heapq.heappop(self._queue)
                timer = self._known.get(name)
                if timer is not None and timer.next_ms == next_ms:
                    due.append(timer)
            if not due:
                return
            await asyncio.gather(*map(self._fire, due))

    async def _fire(self, timer: Timer) -> None:
        key = self._key(timer.name)
        try:
            firing = await apply_rule(
                self._store,
                key,
                partial(rules.begin, timer=timer, late_ms=self._late_ms, now_ms=self._now_ms()),
                guess=rules.write(timer),
            )
            if firing is None:
                self.statistics.skipped += 1
                self._known.pop(timer.name, None)
                await self._learn(timer.name)
                return
            await self._publish(firing)
            after = await apply_rule(
                self._store,
                key,
                partial(rules.fired, timer=firing, now_ms=self._now_ms()),
                guess=rules.write(firing),
            )
            self._known.pop(timer.name, None)
            if after is not None:
                self._know(after)
        except Exception as error:  # One timer that cannot be published holds up no other.
            self.statistics.failed += 1
            log.warning("timers.failed name=%s timer=%s error=%s", self.name, timer.name, error)
            heapq.heappush(self._queue, (self._now_ms() + RETRY_MS, timer.next_ms, timer.name))

    async def _publish(self, timer: Timer) -> None:
        kind = self._sends.get(timer.type)
        if self._app is None or kind is None:
            raise ConfigError(f"the message {timer.type} is not named in sends=[...] any more")
        await self._app.publish(
            kind.model_validate_json(timer.body),
            message_id=timer.message_id(self.name),
            headers={NAME: timer.name, TIME: timer.next_ms},
        )
        self.statistics.fired += 1

    async def _tell(self, name: str) -> None:
        """Whoever leads shall know; at once, if it is this process."""
        await self._lead.tell(name)
        self._told = True
        self._wake_up()

    async def _learn(self, name: str) -> None:
        held = await self._store.compare_and_set(self._key(name), None, None, keep_ms=1)
        timer = rules.read(held.current)
        if timer is None:
            self._known.pop(name, None)
        else:
            self._know(timer)

    async def _stored(self) -> AsyncIterator[Timer]:
        async for key, record in self._store.records(record_key("timer", self.name, "")):
            timer = rules.read(record)
            if timer is not None and self._key(timer.name) == key:
                yield timer

    def _know(self, timer: Timer) -> None:
        before = self._known.get(timer.name)
        self._known[timer.name] = timer
        if before is None or before.next_ms != timer.next_ms:
            heapq.heappush(self._queue, (timer.next_ms, timer.next_ms, timer.name))

    def _forget(self) -> None:
        self._known.clear()
        self._queue.clear()
        self._revision = -1

    def _new_lead(self) -> LeaderElection:
        owner = secrets.token_hex(8)
        return LeaderElection(
            self._store, record_key("timers", self.name, "lead"), owner, lease=self._lease, clock=self._clock
        )

    def _type_of(self, message: Message) -> str:
        kind = type(message).wire_type
        if self._sends.get(kind) is not type(message):
            raise ConfigError(
                f"Timers {self.name} publish a {type(message).__name__}, which is not named in sends=[...]"
            )
        return kind

    def _key(self, name: str) -> str:
        return record_key("timer", self.name, name)

    def _now_ms(self) -> int:
        return int(self._clock.now() * 1000)


__all__ = ["TimerInfo", "Timers", "TimersStatistics"]
