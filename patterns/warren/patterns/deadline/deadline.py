"""Deadline: something must happen in time, or else a signal is published (the order that stays unpaid is
cancelled).

Guarantees: of *completed* and *expired* exactly one wins, once and for all, whatever the order in which
start, completion and due message arrive, how often each is delivered, and whoever crashes in between. The
store decides, by a compare-and-set. The signal is published only after it said *expired*, and again until the
broker confirmed it: at least once, always with the same message id, so that `Once` recognises its duplicates.
These hold as long as the store keeps what it has confirmed.

**Whose time counts.** The due time is computed by the clock of who calls `start` and judged by the clock of
who handles the due message. `complete(key)` is in time if it reaches the store before the expiry does: a
payment whose message waited in a backlog loses to an expiry that did not. `complete(key, at=...)` is
stricter, never kinder: one that says itself that it came after the due time is late even if the expiry is not
decided yet. A decision is never taken back.

Costs: a quorum queue for the due messages, one that delays them, and a few more (each with half the delay)
that are made when they are first needed: for a deadline that was extended, or started late. Two messages and
three decisions for each deadline that expires, one message and two or three decisions for one that is
completed.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Final, TypeVar
from uuid import UUID, uuid5

from warren.patterns.deadline import rules
from warren.patterns.deadline.rules import DeadlineOutcome, DeadlineRecord, DeadlineState
from warren.patterns.delay import wait_queue
from warren.patterns.stores import RuleResult, Store, apply_rule, apply_rule_with_retry, record_key
from warren.sdk import (
    App,
    Clock,
    Command,
    ConfigError,
    DeadLetter,
    Message,
    Queue,
    SystemClock,
    WarrenError,
    current_delivery,
)

log: logging.Logger = logging.getLogger("warren.patterns")

NAMESPACE: Final = UUID("5f0c2a0e-8a3b-5a52-9d0f-6b1d3f6f4c1d")
MILLISECOND: Final = timedelta(milliseconds=1)

Answer = TypeVar("Answer")


@dataclass(slots=True)
class DeadlineStatistics:
    """What this process has seen; other processes count their own."""

    started: int = 0
    won: int = 0
    late: int = 0
    repeated: int = 0
    signalled: int = 0
    """Signals that the broker confirmed; more than the deadlines that expired if some were published
    again."""
    settled: int = 0
    """Due messages that found their deadline completed, or its signal confirmed."""
    delayed_again: int = 0
    """Due messages that came early, or whose deadline was extended."""
    postponed: int = 0
    """Due messages that were put off because the store or the publishing of the signal failed."""


class Deadline:
    """A deadline for each key, which is completed in time or signalled.

    `app.include(deadline)` in every process that starts deadlines or that shall handle what is due; one that
    only completes needs no App.

    :param name: of the queues, and of the keys in the store: one name is one kind of deadline.
    :param after: how long there is time.
    :param signal: makes the message to publish from the key; called again when it is published again.
    :param store: where it is decided, shared by all who take part: `RedisStore`, `PostgresStore`, or
        `SqliteStore` on one machine.
    :param keep: how long a settled deadline is remembered, from its due time or its decision, whichever is
        later. Default 7 days. A key that is started again within it is not started again; afterwards it is a
        new deadline.
    :param precision: how late, besides the broker's own delay, a deadline may be signalled that was extended
        or started with `at`. Default a twentieth of `after`, at most 1 s.
    :param retry_after: when a due message comes again because store or signal failed. Default 5 s, at most
        `after`.
    :param patience: how long `start`, `complete` and `extend` wait for a store that fails. Default one
        minute.
    :param concurrency: due messages handled at a time. Default 20.
    :raises ConfigError: a duration is too short, or the name empty.
    """

    def __init__(
        self,
        name: str,
        *,
        after: timedelta,
        signal: Callable[[str], Message],
        store: Store,
        keep: timedelta = timedelta(days=7),
        precision: timedelta | None = None,
        retry_after: timedelta = timedelta(seconds=5),
        patience: timedelta = timedelta(minutes=1),
        concurrency: int = 20,
    ) -> None:
        if not name:
            raise ConfigError("a Deadline needs a name: its queues and keys carry it")
        if min(after, keep, retry_after) < MILLISECOND:
            raise ConfigError(
                f"Deadline {name}: after ({after}), keep ({keep}) and retry_after ({retry_after}) are at least a millisecond"
            )
        self.name = name
        self.statistics: DeadlineStatistics = DeadlineStatistics()
        self._after_ms = _ms(after)
        self._keep_ms = _ms(keep)
        self._retry_ms = min(_ms(retry_after), self._after_ms)
        self._precision_ms = max(
            1, _ms(precision) if precision is not None else min(1000, self._after_ms // 20)
        )
        self._signal = signal
        self._store = store
        self._patience = patience.total_seconds()
        self._concurrency = concurrency
        self._queue = Queue(f"{name}.due")
        self._due = _due_message(self._queue)
        self._steps_ms = list(_halves(self._after_ms, self._precision_ms))
        self._waiting: dict[int, str] = {}
        """The queues that delay, by their milliseconds, as far as they are declared."""
        self._app: App | None = None
        self._clock: Clock = SystemClock()

    async def start(self, key: str, *, at: datetime | None = None) -> None:
        """Begin the deadline of `key`, due `after` from `at` (default: now). Returns when store and broker
        have it. One that begins now is signalled later by as much as the store took to say so.

        Idempotent: a second start changes nothing. If the key was completed before, it stays completed.

        :param at: from when the time counts; a due time that is past expires at once.
        :raises ConfigError: the Deadline belongs to no App, or `at` has no time zone.
        :raises StoreUnavailable: it is not known whether it was started; start again.
        :raises PublishError: nothing can be relied on; start again.
        """
        app = self._included()
        now_ms = self._now_ms()
        due_ms = (now_ms if at is None else _instant_ms(at)) + self._after_ms

        def rule(record: bytes | None) -> RuleResult[DeadlineRecord]:
            return rules.start(record, due_ms=due_ms, now_ms=self._now_ms(), keep_ms=self._keep_ms)

        held = await self._decide(key, rule)
        self.statistics.started += 1
        # Also what is pending already, or owes its signal: an earlier start may have crashed before it
        # published.
        if at is None and held.state is DeadlineState.PENDING and held.due_ms == due_ms:
            # One step of the whole time, however long the store took: the rest in halves would be many messages for
            # each deadline, just when a store is slow, and early where the clock of who starts is behind.
            await app.publish(self._due(key=key, due_ms=due_ms), key=self._waiting[self._after_ms])
        elif held.state in (DeadlineState.PENDING, DeadlineState.EXPIRED):
            await self._wait(app, key, held.due_ms or due_ms)

    async def complete(
        self, key: str, *, at: datetime | None = None, by: str | None = None
    ) -> DeadlineOutcome:
        """Say that what `key` waits for has happened.

        `WON`: in time, the signal will not be published. `LATE`: it expired before, the signal was or will be
        published; each late completion hears so each time, what it does then must be idempotent. `REPEATED`:
        another completion won before. Before `start` it is remembered for `keep`, and wins.

        :param at: when it happened; later than due is late even if the expiry is not decided yet.
        :param by: who completes: the winner is told `WON` again when it asks again. By default the message id
            of the delivery that is being handled, so that a redelivery hears what the first delivery heard.
        :raises StoreUnavailable: it is not known whether it was decided; ask again.
        """
        who = by or _being_handled() or secrets.token_hex(8)
        at_ms = None if at is None else _instant_ms(at)

        def rule(record: bytes | None) -> RuleResult[DeadlineOutcome]:
            return rules.complete(record, by=who, at_ms=at_ms, now_ms=self._now_ms(), keep_ms=self._keep_ms)

        outcome = await self._decide(key, rule)
        self.statistics.won += outcome is DeadlineOutcome.WON
        self.statistics.late += outcome is DeadlineOutcome.LATE
        self.statistics.repeated += outcome is DeadlineOutcome.REPEATED
        return outcome

    async def extend(self, key: str, until: datetime) -> bool:
        """Move the due time of `key` to `until`, later only (earlier changes nothing); False if it is settled
        or was never started.

        :raises ConfigError: `until` has no time zone.
        :raises StoreUnavailable: it is not known whether it was moved; ask again.
        """
        due_ms = _instant_ms(until)

        def rule(record: bytes | None) -> RuleResult[bool]:
            return rules.extend(record, due_ms=due_ms, now_ms=self._now_ms(), keep_ms=self._keep_ms)

        return await self._decide(key, rule)

    def register(self, app: App) -> None:
        self._app = app
        self._clock = app.clock
        waiting = wait_queue(self._queue.name, self._after_ms * MILLISECOND)
        app.declare(self._queue, waiting)
        self._waiting[self._after_ms] = waiting.name
        app.handle(self._due, concurrency=self._concurrency)(self._handle)

    async def on_start(self) -> None:
        """Nothing to begin: what is due comes as messages."""

    async def on_stop(self) -> None:
        """Close the store; the next use opens it again."""
        await self._store.close()

    async def _decide(self, key: str, rule: Callable[[bytes | None], RuleResult[Answer]]) -> Answer:
        return await apply_rule_with_retry(
            self._store, self._key(key), rule, clock=self._clock, patience=self._patience
        )

    async def _handle(self, due: _Due) -> None:
        app = self._included()
        try:
            again_ms = await self._expire(app, due)
        except WarrenError as error:
            # Put off and acknowledged, not requeued: a store that is down for an hour must not use up the
            # delivery limit.
            log.warning("deadline.postponed name=%s key=%s error=%s", self.name, due.key, error)
            self.statistics.postponed += 1
            await self._wait(app, due.key, self._now_ms() + self._retry_ms, due.due_ms)
            return
        if again_ms is not None:
            await self._wait(app, due.key, again_ms)

    async def _expire(self, app: App, due: _Due) -> int | None:
        """Decide what is due and signal it; when it is due if this is too early."""
        key = due.key
        now_ms = self._now_ms()
        held = await apply_rule(
            self._store,
            self._key(key),
            partial(rules.expire, now_ms=now_ms, keep_ms=self._keep_ms),
            guess=None if due.due_ms is None else rules.pending_record(due.due_ms, self._keep_ms),
        )
        if held.state is DeadlineState.PENDING:
            self.statistics.delayed_again += 1
            return held.due_ms
        if held.state is DeadlineState.FORGOTTEN:
            raise DeadLetter(
                f"deadline {self.name}: the store knows nothing of {key!r}, so that it is neither expired nor completed"
            )
        if held.state is DeadlineState.EXPIRED:
            message_id = str(uuid5(NAMESPACE, f"{self.name}\n{key}\n{held.due_ms}"))
            await app.publish(self._signal(key), message_id=message_id)
            self.statistics.signalled += 1
            await apply_rule(
                self._store,
                self._key(key),
                partial(rules.confirm, now_ms=now_ms, keep_ms=self._keep_ms),
                guess=rules.record_of(held),
            )
        else:
            self.statistics.settled += 1
        return None

    async def _wait(self, app: App, key: str, until_ms: int, due_ms: int | None = None) -> None:
        """Publish the due message so that it comes back at about `until_ms`, and at once if that is past.

        :param due_ms: when the deadline is due, if not then.
        """
        queue = self._queue.name
        rest_ms = until_ms - self._now_ms()
        if rest_ms > 0:
            step_ms = _step(self._steps_ms, rest_ms, self._precision_ms)
            if step_ms not in self._waiting:
                waiting = wait_queue(self._queue.name, step_ms * MILLISECOND)
                await app.declare_now(waiting)
                self._waiting[step_ms] = waiting.name
            queue = self._waiting[step_ms]
        await app.publish(self._due(key=key, due_ms=until_ms if due_ms is None else due_ms), key=queue)

    def _key(self, key: str) -> str:
        return record_key("deadline", self.name, key)

    def _now_ms(self) -> int:
        return int(self._clock.now() * 1000)

    def _included(self) -> App:
        if self._app is None:
            raise ConfigError(f"the Deadline {self.name} belongs to no App: app.include(deadline)")
        return self._app


def _being_handled() -> str | None:
    delivery = current_delivery()
    return delivery.message_id if delivery is not None else None


class _Due(Command):
    key: str
    due_ms: int | None = None
    """When it was due as this was published: the store's word counts, this only guesses it."""


def _due_message(queue: Queue) -> type[_Due]:
    class Due(_Due, queue=queue, type="deadline_due"):
        """That a deadline is due; the store knows when, and what became of it."""

    return Due


def _halves(after_ms: int, precision_ms: int) -> Iterator[int]:
    """The delays that have a queue: `after`, its half, and so on down to the precision."""
    step = after_ms
    while True:
        yield step
        if step <= precision_ms:
            return
        step = -(-step // 2)


def _step(steps_ms: Sequence[int], rest_ms: int, precision_ms: int) -> int:
    """The delay to wait next: the shortest that ends at most `precision_ms` too late, else the longest that
    ends before."""
    fitting = [step for step in steps_ms if rest_ms <= step <= rest_ms + precision_ms]
    return min(fitting) if fitting else max(step for step in steps_ms if step < rest_ms)


def _ms(duration: timedelta) -> int:
    return -(-duration // MILLISECOND)


def _instant_ms(instant: datetime) -> int:
    if instant.tzinfo is None:
        raise ConfigError(f"{instant} has no time zone: datetime(..., tzinfo=UTC)")
    return int(instant.timestamp() * 1000)


__all__ = ["Deadline", "DeadlineOutcome", "DeadlineStatistics"]
