"""Timers: messages that are published at a time, in intervals, or by a cron expression; stored, listed and cancelled by
name.

Guarantees: of all processes that include the same Timers, one (the leader) publishes, and another takes over when it
dies. Each time of a timer is published at least once, with the same message id whichever process publishes it and
however often, so that `Once` makes its effect happen once. This includes the times of a takeover, and of a broker or
store that is down: each time that is at most `late` behind is published. For the times before, one message is published
or none, as the timer's `missed` says. If `cancel` is called when a timer falls due, one of the two wins: after
`cancel` has returned True, a message is published only for a time that had already come.

**Which clock counts**: the clock of the leader. The leader's election does not depend on synchronised clocks.

Costs: a record per timer; for each process, one store operation per third of a lease; two store operations and one
publish each time that a timer fires.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncIterator, Sequence
from contextvars import Context
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import ClassVar, Final

from warren.patterns.argument_checks import check_store
from warren.patterns.monotonic_time import monotonic_time
from warren.patterns.stores import (
    StoreReference,
    StoreUnavailable,
    apply_rule,
    apply_rule_with_retry,
    listed_key,
    record_key,
)
from warren.patterns.stores.store import ListingStore
from warren.patterns.timers import rules as rules
from warren.patterns.timers.due_queue import DueQueue
from warren.patterns.timers.leader_election import LeaderElection
from warren.patterns.timers.rules import Timer
from warren.patterns.timers.schedules import DateSchedule, Schedule, description, next_time_ms, spec_of
from warren.sdk import App, Clock, ConfigError, Message, SystemClock
from warren.sdk.extend import (
    Duration,
    IncludedComponent,
    as_json_text,
    by_wire_name,
    duration,
    exception_text,
    from_json_text,
    optional_duration,
    poll_at,
    seconds,
)

log: logging.Logger = logging.getLogger("warren.patterns")

TIME_HEADER: Final = "warren-timer-time"
"""Header with the time for which the message is published, in milliseconds since the epoch. A consumer recognises a
late message by it."""
NAME_HEADER: Final = "warren-timer"
MAX_CONCURRENT: Final = 100
RETRY_MS: Final = 1000


@dataclass(slots=True)
class TimersStatistics:
    """Counters of one `Timers` in this process; other processes count their own."""

    fired: int = 0
    """Messages of timers that this process published and the broker confirmed."""
    skipped: int = 0
    """Due times at which this process published no message, because the timer skips times at which no process was
    running, or was changed, cancelled or published by another process meanwhile."""
    failed: int = 0
    """Publishes that failed; they are retried."""
    elections: int = 0
    """Number of times that this process became the leader."""
    outages: int = 0
    """Store operations that failed because the store did not answer."""


@dataclass(frozen=True, slots=True)
class TimerInfo:
    """Description of one timer, as `Timers.scheduled` returns it.

    :ivar schedule: description of its schedule: `once`, `every 0:05:00`, `0 6 * * * (Europe/Berlin)`.
    :ivar due: time at which it is published next.
    :ivar message: type of its message.
    :ivar fired: number of times that it was published.
    """

    name: str
    schedule: str
    due: datetime
    message: str
    body: str
    missed: str
    fired: int


class Timers(IncludedComponent):
    """Set of timers that are stored, listed and cancelled by name. Call `app.include(timers)` in every process that may
    publish their messages; a process that only stores (`put`) and cancels timers needs no App.

    :param name: name of this set of timers in the store.
    :param store: shared by all processes: `RedisStore`, `PostgresStore`, or `SqliteStore` on one machine.
    :param sends: classes of all messages that timers publish; their topology is declared at start.
    :param schedules: schedules whose timers are stored when the App starts. A `DateSchedule` whose message was
        published is not stored again, nor is a schedule that was cancelled, unless its times or its message have changed
        since. A schedule that is removed from this list stays until it is cancelled.
    :param lease: time after the death of the leader until another process takes over; within a third of it, the leader
        reads a timer that another process has stored. Default 15 s.
    :param late: lateness from which a time counts as missed; a schedule's `missed` decides what is published for such
        times. Default 1 minute, or twice the lease if that is longer, so that no time is missed by an ordinary takeover.
    :param patience: how long `put` and `cancel` wait for a store that fails. Default 10 s.
    :raises ConfigError: the name is empty, a duration too short, or the message of a schedule is not in `sends`.
    """

    requires_durable_broker: ClassVar[bool] = True

    def __init__(
        self,
        name: str,
        *,
        store: ListingStore,
        sends: Sequence[type[Message]],
        schedules: Sequence[Schedule] = (),
        lease: Duration = timedelta(seconds=15),
        late: Duration | None = None,
        patience: Duration = timedelta(seconds=10),
    ) -> None:
        if not name:
            raise ConfigError("Timers need a name, because their records in the store contain it")
        lease, late = duration(lease, "Timers: lease"), optional_duration(late, "Timers: late")
        if late is None:
            late = max(timedelta(minutes=1), 2 * lease)
        if lease < timedelta(milliseconds=30) or late < timedelta(0):
            raise ConfigError(
                f"Timers {name}: lease ({lease}) must be at least 30 ms, and late ({late}) must not be negative"
            )
        self.name: str = name
        self.statistics: TimersStatistics = TimersStatistics()
        """Counters of what this object has done in this process."""
        check_store(f"Timers {name}", store, lists_records=True)
        self._store = StoreReference(store)
        self._sends = by_wire_name(f"Timers {name}", sends)
        self._schedules = tuple(schedules)
        self._lease = lease.total_seconds()
        self._late_ms = late // timedelta(milliseconds=1)
        self._patience = seconds(patience, "Timers: patience")
        self._clock: Clock = SystemClock()
        super().__init__()
        self._election = self._new_election()
        self._revision = -1
        self._due = DueQueue()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._change_announced = self._working = False
        self._last_heartbeat = float("-inf")
        for schedule in self._schedules:
            self._type_of(schedule.message)
            self._key(schedule.name)

    @property
    def is_leader(self) -> bool:
        """True if this process is the leader, which publishes the timers' messages."""
        return self._election.is_leader

    @property
    def busy(self) -> str:
        """Name of the background work in progress, such as "the timers billing"; empty if there is none. A test on a
        virtual clock advances the time only while this is empty."""
        return f"the timers {self.name}" if self._working else ""

    async def put(self, schedule: Schedule) -> bool:
        """Store a timer, in place of one with the same name; return True if it was stored.

        Return False if a timer with the same schedule and message is there, which then continues, or was published
        within the last hour (or ever, for a timer from `schedules`).

        :raises ConfigError: its message is not in `sends`, or its name is empty or too long.
        :raises StoreUnavailable: it is unknown whether the timer was stored; put it again.
        """
        return await self._put(schedule, standing=False)

    async def _put(self, schedule: Schedule, *, standing: bool) -> bool:
        now_ms, spec = self._now_ms(), spec_of(schedule)
        kind, body = self._type_of(schedule.message), as_json_text(schedule.message)
        next_ms = spec["at_ms"] if isinstance(schedule, DateSchedule) else next_time_ms(spec, now_ms, now_ms)
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
        await self._announce_change(schedule.name)
        return done

    async def cancel(self, name: str) -> bool:
        """Cancel the timer with this name, and return whether it was cancelled.

        :return: True if no message will be published for times that are still to come. False if there is no such timer,
            or its only time has come.
        :raises StoreUnavailable: it is unknown whether the timer was cancelled; cancel it again.
        """
        done = await apply_rule_with_retry(
            self._store,
            self._key(name),
            partial(rules.cancel, token=secrets.token_hex(8)),
            clock=self._clock,
            patience=self._patience,
        )
        await self._announce_change(name)
        return done

    async def scheduled(self) -> Sequence[TimerInfo]:
        """Return all timers that will be published again, ordered by their due times.

        :raises StoreUnavailable: the store did not answer.
        """
        found = sorted(
            [timer async for timer in self._stored_timers()], key=lambda timer: (timer.next_ms, timer.name)
        )
        return [
            TimerInfo(
                timer.name,
                description(timer.spec),
                datetime.fromtimestamp(timer.next_ms / 1000, UTC),
                timer.type,
                timer.body,
                timer.missed,
                timer.fired,
            )
            for timer in found
            if not (timer.firing and "at_ms" in timer.spec)
        ]

    @property
    def lost_without_app(self) -> str:
        return "its schedules publish nothing" if self._schedules else ""

    def register(self, app: App) -> None:
        super().register(app)
        self._store.use_clock(app.clock)
        self._clock = app.clock
        self._election = self._new_election()
        app.publishes(*self._sends.values())

    async def on_start(self) -> None:
        """Start a background task that stores the timers of `schedules`, takes part in the leader's election, and
        publishes."""
        self._wake = asyncio.Event()
        self._working = True
        self._last_heartbeat = float("-inf")
        # A separate context: timers must not inherit context variables from the caller that started the App.
        self._task = asyncio.create_task(self._run(), name=f"timers {self.name}", context=Context())

    async def on_stop(self) -> None:
        """Stop publishing, give up the leadership so that another process takes over at once, and close the store."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._working = False
        self._forget()
        with contextlib.suppress(StoreUnavailable):
            await self._election.resign()
        await self._store.close()

    async def _run(self) -> None:
        pending = list(self._schedules)
        while True:
            store_failed = False
            try:
                while pending:
                    await self._put(pending[0], standing=True)
                    pending.pop(0)
                if self._heartbeat_due:
                    self._change_announced, self._last_heartbeat = False, monotonic_time(self._clock)
                    await self._heartbeat()
                await self._fire_due()
            except StoreUnavailable as error:
                store_failed = True
                self.statistics.outages += 1
                log.warning("event=timers.store_failed name=%s error=%s", self.name, error)
            # While nothing is wrong, a heartbeat is a poll: a test on a virtual clock needs few of them.
            is_quiet = not store_failed and not self._election.is_leader_silent
            await self._sleep(
                self._last_heartbeat + self._lease / 3 - monotonic_time(self._clock), polls=is_quiet
            )

    @property
    def _heartbeat_due(self) -> bool:
        """True if a third of a lease has passed since the last heartbeat, or this process has changed a timer since."""
        since = monotonic_time(self._clock) - self._last_heartbeat
        return self._change_announced or since >= self._lease / 3

    async def _sleep(self, seconds: float, *, polls: bool) -> None:
        """Wait until the next timer is due, or this process stores or cancels a timer, but no longer than `seconds`.

        :param seconds: time until the next heartbeat of the leader's election is due.
        :param polls: False if this heartbeat must not be left out, also by a virtual clock.
        """
        now = self._clock.now()
        soonest = now + 0.001
        heartbeat_at = max(now + seconds, soonest)
        if polls:
            alarms = [poll_at(self._clock, heartbeat_at, self._wake_up)]
        else:
            alarms = [self._clock.call_at(heartbeat_at, self._wake_up)]
        if self.is_leader and self._due.next_ms is not None:
            alarms.append(self._clock.call_at(max(self._due.next_ms / 1000, soonest), self._wake_up))
        self._working = self._change_announced
        try:
            await self._wake.wait()
        finally:
            self._wake.clear()
            for alarm in alarms:
                alarm.cancel()
            self._working = True

    def _wake_up(self) -> None:
        self._working = True
        self._wake.set()

    async def _heartbeat(self) -> None:
        """Send this process's heartbeat to the leader's election. If the process is the leader, also read from the
        store the timers that other processes have stored or cancelled."""
        heartbeat = await self._election.heartbeat(self._revision)
        if not heartbeat.is_leader:
            self._forget()
            return
        if self._revision < 0:
            self.statistics.elections += 1
            log.info("event=timers.leader_elected name=%s token=%d", self.name, heartbeat.head.token)
        if self._revision < 0 or heartbeat.changed_names is None:
            self._forget()
            async for timer in self._stored_timers():
                self._remember(timer)
        else:
            for name in dict.fromkeys(heartbeat.changed_names):
                await self._reload(name)
        self._revision = heartbeat.head.revision

    async def _fire_due(self) -> None:
        """Publish the messages of due timers until none is due, or it is time for a heartbeat: a timer that has many
        times to make up for must not cost the leadership."""
        while self.is_leader and not self._heartbeat_due:
            due = self._due.pop_due(self._now_ms(), MAX_CONCURRENT)
            if not due:
                return
            await asyncio.gather(*map(self._fire, due))

    async def _fire(self, timer: Timer) -> None:
        key = self._key(timer.name)
        try:
            firing = await apply_rule(
                self._store,
                key,
                partial(rules.begin_firing, timer=timer, late_ms=self._late_ms, now_ms=self._now_ms()),
                guess=rules.write(timer),
            )
            if firing is None:
                self.statistics.skipped += 1
                await self._reload(timer.name)
                return
            await self._publish(firing)
            after = await apply_rule(
                self._store,
                key,
                partial(rules.finish_firing, timer=firing, now_ms=self._now_ms()),
                guess=rules.write(firing),
            )
            if after is not None:
                self._remember(after)
        except Exception as error:  # A timer that cannot be published must not hold up the others.
            self.statistics.failed += 1
            log.warning(
                "event=timers.publish_failed name=%s timer=%s error=%s",
                self.name,
                timer.name,
                exception_text(error),
            )
            self._due.put(timer, self._now_ms() + RETRY_MS)

    async def _publish(self, timer: Timer) -> None:
        kind = self._sends.get(timer.type)
        if kind is None:
            raise ConfigError(f"the message {timer.type} is no longer named in sends=[...]")
        await self.included_in().publish(
            from_json_text(kind, timer.body),
            message_id=timer.message_id(self.name),
            headers={NAME_HEADER: timer.name, TIME_HEADER: timer.next_ms},
        )
        self.statistics.fired += 1

    async def _announce_change(self, name: str) -> None:
        """Announce in the election's record that the timer `name` was stored or cancelled, so that the leader reads it
        from the store. This process sends its next heartbeat at once, because it may be the leader itself."""
        await self._election.announce_change(name)
        self._change_announced = True
        self._wake_up()

    async def _reload(self, name: str) -> None:
        held = await self._store.compare_and_set(self._key(name), None, None, keep_ms=1)
        timer = rules.read(held.current)
        if timer is None:
            self._due.discard(name)
        else:
            self._remember(timer)

    async def _stored_timers(self) -> AsyncIterator[Timer]:
        async for key, record in self._store.records(record_key("timer", self.name, "")):
            timer = rules.read(record)
            if timer is not None and self._key(timer.name) == key:
                yield timer

    def _remember(self, timer: Timer) -> None:
        self._due.put(timer, timer.next_ms)

    def _forget(self) -> None:
        self._due.clear()
        self._revision = -1

    def _new_election(self) -> LeaderElection:
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
        return listed_key("timer", self.name, name)

    def _now_ms(self) -> int:
        return int(self._clock.now() * 1000)


__all__ = ["TimerInfo", "Timers", "TimersStatistics"]
