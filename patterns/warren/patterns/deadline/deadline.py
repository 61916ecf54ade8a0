"""Deadline: publish a message (the signal) unless an event is recorded in time, such as a payment (cancel the order
that stays unpaid).

Guarantees: exactly one of *completed* and *expired* wins, once and for all, whatever the order in which start,
completion and due message (a delayed message to check the deadline) arrive, how often each is delivered, and whichever
process crashes in between. The store decides, by a compare-and-set. The signal is published only after the record is
*expired*, and again until the broker has confirmed it: at least once, always with the same message id, so that `Once`
recognises its duplicates. The guarantees hold as long as the store keeps what it has confirmed.

**Which clock counts.** The clock of the process that calls `start` computes the due time, and the clock of the process
that handles the due message compares with it. `complete(key)` is in time if it reaches the store before the expiry
does: a payment is late if its message waits in a backlog until the deadline has expired. `complete(key, at=...)` adds a
second condition: a completion whose own time is after the due time is late even if the expiry is not decided yet. A
decision is never reversed.

Costs: a quorum queue for the due messages and a wait queue that delays them. For deadlines that were extended or
started late there are a few more wait queues, each with half the delay of the one before, declared when needed. A
deadline that expires costs two messages and three store operations, one that is completed costs one message and two or
three store operations.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import ClassVar, Final, TypeVar
from uuid import UUID, uuid5

from warren.patterns.argument_checks import check_store
from warren.patterns.deadline import rules
from warren.patterns.deadline.rules import DeadlineOutcome, DeadlineRecord, DeadlineState
from warren.patterns.delay import wait_queue
from warren.patterns.stores import (
    RuleResult,
    Store,
    StoreReference,
    apply_rule,
    apply_rule_with_retry,
    required_key,
)
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
from warren.sdk.extend import Duration, IncludedComponent, check_whole_number, duration, milliseconds, seconds

log: logging.Logger = logging.getLogger("warren.patterns")

NAMESPACE: Final = UUID("5f0c2a0e-8a3b-5a52-9d0f-6b1d3f6f4c1d")
MILLISECOND: Final = timedelta(milliseconds=1)

Answer = TypeVar("Answer")


@dataclass(slots=True)
class DeadlineStatistics:
    """Counters of one `Deadline` in this process; other processes count their own."""

    started: int = 0
    """Calls of `start`, including those for a key whose deadline had been started before."""
    won: int = 0
    """Calls of `complete` that were in time and the first for their key."""
    late: int = 0
    """Calls of `complete` after the deadline had expired."""
    repeated: int = 0
    """Calls of `complete` for a key that another call had completed before."""
    signalled: int = 0
    """Signals (messages for expired deadlines) that the broker confirmed. The number exceeds that of expired deadlines
    if some signals were published again."""
    settled: int = 0
    """Due messages (delayed messages that check a deadline) that needed no action: the deadline was already completed,
    or the signal, the message for its expiry, was already confirmed."""
    delayed_again: int = 0
    """Due messages (delayed messages that check a deadline) that were delayed again because they arrived too early, or
    their deadline had been extended."""
    postponed: int = 0
    """Due messages (delayed messages that check a deadline) that were delayed again because the store failed or the
    signal could not be published."""


class Deadline(IncludedComponent):
    """Kind of deadline, with one instance for each key, such as an order's id. Each is either completed in time, or
    expires and publishes its signal, a message. A *due message*, which the broker delays, triggers the check whether a
    deadline has expired.

    Call `app.include(deadline)` in every process that starts deadlines or handles due messages; a process that only
    completes deadlines needs no App.

    :param name: name of the kind of deadline; part of the names of its queues and of its keys in the store.
    :param after: time from the start of a deadline until it is due.
    :param signal: returns the message to publish for an expired key. It is called again if the message must be
        published again.
    :param store: store of the deadlines, shared by all processes that use them: `RedisStore`, `PostgresStore`, or
        `SqliteStore` on one machine.
    :param keep: how long a completed or expired deadline is remembered, from its due time or from the completion or
        expiry, whichever is later. Default 7 days. Within that time a further `start` of its key has no effect;
        afterwards it starts a new deadline.
    :param precision: largest delay, besides the broker's own, of the signal of a deadline that was extended or started
        with `at`. Default a twentieth of `after`, at most 1 s.
    :param retry_after: time until the due message is handled again after the store or the publishing of the signal
        failed. Default 5 s, at most `after`.
    :param patience: how long `start`, `complete` and `extend` retry while the store fails. Default one minute.
    :param concurrency: due messages handled at a time. Default 20.
    :raises ConfigError: a duration is too short, or the name is empty.
    """

    requires_durable_broker: ClassVar[bool] = True

    def __init__(
        self,
        name: str,
        *,
        after: Duration,
        signal: Callable[[str], Message],
        store: Store,
        keep: Duration = timedelta(days=7),
        precision: Duration | None = None,
        retry_after: Duration = timedelta(seconds=5),
        patience: Duration = timedelta(minutes=1),
        concurrency: int = 20,
    ) -> None:
        if not name:
            raise ConfigError("a Deadline needs a name, because its queues and keys contain it")
        after, keep = duration(after, "Deadline: after"), duration(keep, "Deadline: keep")
        retry_after = duration(retry_after, "Deadline: retry_after")
        if min(after, keep, retry_after) < MILLISECOND:
            raise ConfigError(
                f"Deadline {name}: after ({after}), keep ({keep}) and retry_after ({retry_after}) must be at least 1 ms"
            )
        check_whole_number(f"Deadline {name}: concurrency", concurrency)
        self.name = name
        self.statistics: DeadlineStatistics = DeadlineStatistics()
        """Counters of what this object has done in this process."""
        self._after_ms = milliseconds(after)
        self._keep_ms = milliseconds(keep)
        self._retry_ms = min(milliseconds(retry_after), self._after_ms)
        self._precision_ms = max(
            1,
            milliseconds(duration(precision, "Deadline: precision"))
            if precision is not None
            else min(1000, self._after_ms // 20),
        )
        self._signal = signal
        check_store(f"Deadline {name}", store)
        self._store = StoreReference(store)
        self._patience = seconds(patience, "Deadline: patience")
        self._concurrency = concurrency
        self._queue = Queue(f"{name}.due")
        self._due = _due_message(self._queue)
        self._steps_ms = list(_delay_steps(self._after_ms, self._precision_ms))
        self._waiting: dict[int, str] = {}
        """Wait queues declared so far: names by their delay in milliseconds."""
        super().__init__()
        self._clock: Clock = SystemClock()

    async def start(self, key: str, *, at: datetime | None = None) -> None:
        """Start the deadline of `key`, due `after` from `at` (default: now). Return when the store has recorded it and
        the broker has confirmed its due message, the delayed message that triggers the check.

        Without `at`, the broker delays the due message for the whole time `after`, beginning when it receives it. The
        signal is therefore late by the time that recording the start in the store took. A second start of the same key
        changes nothing. A key that was completed before its start stays completed.

        :param at: time from which `after` counts. If the due time is already past, the deadline expires at once.
        :raises ConfigError: the Deadline belongs to no App, `at` has no time zone, or the key is empty or no text.
        :raises StoreUnavailable: it is unknown whether the deadline was started; start it again.
        :raises PublishError: the due message may not be in the broker; start the deadline again.
        """
        app = self.included_in()
        now_ms = self._now_ms()
        due_ms = (now_ms if at is None else _timestamp_ms(at)) + self._after_ms

        def rule(record: bytes | None) -> RuleResult[DeadlineRecord]:
            return rules.start(record, due_ms=due_ms, now_ms=self._now_ms(), keep_ms=self._keep_ms)

        held = await self._decide(key, rule)
        self.statistics.started += 1
        # Also for a pending deadline, or one whose signal is not published: an earlier start may have crashed before
        # it published.
        if at is None and held.state is DeadlineState.PENDING and held.due_ms == due_ms:
            # One delay of the whole time, however long the store took: the rest in halves would be many messages for
            # each deadline, just when a store is slow, and early if the clock of the starting process is behind.
            await app.publish(self._due(key=key, due_ms=due_ms), key=self._waiting[self._after_ms])
        elif held.state in (DeadlineState.PENDING, DeadlineState.EXPIRED):
            await self._publish_due(app, key, held.due_ms or due_ms)

    async def complete(
        self, key: str, *, at: datetime | None = None, by: str | None = None
    ) -> DeadlineOutcome:
        """Record that the awaited event of `key` has happened, and return whether it was in time.

        `WON`: in time, so the signal (the message for an expired deadline) will not be published. `LATE`: the deadline
        expired before, and the signal was or will be published; every late completion gets this answer each time, so
        the caller's reaction to it must be idempotent. `REPEATED`: another completion won before. A completion before
        `start` is remembered for `keep`, and wins.

        :param at: time of the event. An event after the due time is late even if the deadline has not expired in the
            store yet.
        :param by: identity of the completion, so that the winner gets `WON` again when it repeats the call. Default:
            message id of the delivery that is being handled, so that a redelivery gets the answer of the first
            delivery.
        :raises StoreUnavailable: it is unknown whether the completion was recorded; call again.
        """
        identity = by or _current_message_id() or secrets.token_hex(8)
        at_ms = None if at is None else _timestamp_ms(at)

        def rule(record: bytes | None) -> RuleResult[DeadlineOutcome]:
            return rules.complete(
                record, by=identity, at_ms=at_ms, now_ms=self._now_ms(), keep_ms=self._keep_ms
            )

        outcome = await self._decide(key, rule)
        self.statistics.won += outcome is DeadlineOutcome.WON
        self.statistics.late += outcome is DeadlineOutcome.LATE
        self.statistics.repeated += outcome is DeadlineOutcome.REPEATED
        return outcome

    async def extend(self, key: str, until: datetime) -> bool:
        """Move the due time of `key` to the later time `until`; return True if the deadline is pending. An earlier time
        changes nothing.

        :return: False if the deadline is completed or expired, or was never started.
        :raises ConfigError: `until` has no time zone.
        :raises StoreUnavailable: it is unknown whether the due time was moved; call again.
        """
        due_ms = _timestamp_ms(until)

        def rule(record: bytes | None) -> RuleResult[bool]:
            return rules.extend(record, due_ms=due_ms, now_ms=self._now_ms(), keep_ms=self._keep_ms)

        return await self._decide(key, rule)

    def register(self, app: App) -> None:
        super().register(app)
        self._store.use_clock(app.clock)
        self._clock = app.clock
        waiting = wait_queue(self._queue.name, self._after_ms * MILLISECOND)
        app.declare(self._queue, waiting)
        self._waiting[self._after_ms] = waiting.name
        app.handle(self._due, concurrency=self._concurrency)(self._handle)

    async def on_start(self) -> None:
        """Do nothing when the App starts: the App's own consumer reads the due messages (delayed messages that trigger
        the check of a deadline)."""

    async def on_stop(self) -> None:
        """Close the store; the next use opens it again."""
        await self._store.close()

    async def _decide(self, key: str, rule: Callable[[bytes | None], RuleResult[Answer]]) -> Answer:
        return await apply_rule_with_retry(
            self._store, self._key(key), rule, clock=self._clock, patience=self._patience
        )

    async def _handle(self, due: _Due) -> None:
        app = self.included_in()
        try:
            again_ms = await self._expire(app, due)
        except WarrenError as error:
            # Delayed and acknowledged, not requeued: a store that is down for an hour must not use up the
            # delivery limit.
            log.warning("event=deadline.postponed name=%s key=%s error=%s", self.name, due.key, error)
            self.statistics.postponed += 1
            await self._publish_due(app, due.key, self._now_ms() + self._retry_ms, due.due_ms)
            return
        if again_ms is not None:
            await self._publish_due(app, due.key, again_ms)

    async def _expire(self, app: App, due: _Due) -> int | None:
        """Expire the deadline that a due message (a delayed message that triggers the check) belongs to, and publish
        its signal, the message for an expired deadline.

        :return: None if the deadline is decided now. If it is not due yet, for example because it was extended: its due
            time in milliseconds since the epoch, until which the caller must delay the due message again.
        """
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
                f"deadline {self.name}: the store has no record of {key!r}, so the key is neither expired nor completed"
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

    async def _publish_due(self, app: App, key: str, until_ms: int, due_ms: int | None = None) -> None:
        """Publish the due message of `key`, the message that triggers the check of its deadline, so that the broker
        delivers it at about `until_ms`. If that time is past, it goes to the queue directly.

        A wait queue has a fixed delay. If none fits, the message arrives early, and is then delayed again for the rest.

        :param until_ms: time of the delivery, in milliseconds since the epoch.
        :param due_ms: the deadline as it is known now, written into the message; by default `until_ms`. They
            differ only when a failed check is retried: the message arrives again later, for the same deadline. On arrival
            the deadline in the store is compared with the clock, because it may have been extended since.
        """
        queue = self._queue.name
        rest_ms = until_ms - self._now_ms()
        if rest_ms > 0:
            step_ms = _next_delay(self._steps_ms, rest_ms, self._precision_ms)
            if step_ms not in self._waiting:
                waiting = wait_queue(self._queue.name, step_ms * MILLISECOND)
                await app.declare_now(waiting)
                self._waiting[step_ms] = waiting.name
            queue = self._waiting[step_ms]
        await app.publish(self._due(key=key, due_ms=until_ms if due_ms is None else due_ms), key=queue)

    def _key(self, key: str) -> str:
        return required_key("deadline", self.name, key)

    def _now_ms(self) -> int:
        return int(self._clock.now() * 1000)


def _current_message_id() -> str | None:
    delivery = current_delivery()
    return delivery.message_id if delivery is not None else None


class _Due(Command):
    key: str
    due_ms: int | None = None
    """Due time of the deadline, in milliseconds since the epoch, as known when this message was published. The handler
    computes from it the record that it expects in the store, which saves a read. If the deadline was extended since,
    the due time in the store decides."""


def _due_message(queue: Queue) -> type[_Due]:
    class Due(_Due, queue=queue, type="deadline_due"):
        """Message that requests a check of the deadline of `key`. The deadline's record in the store, not this message,
        decides whether it has expired."""

    return Due


def _delay_steps(after_ms: int, precision_ms: int) -> Iterator[int]:
    """Yield the delays, in milliseconds, of the wait queues of a deadline: `after_ms`, half of it, a quarter and so on,
    ending with the first that is not longer than `precision_ms`."""
    step = after_ms
    while True:
        yield step
        if step <= precision_ms:
            return
        step = -(-step // 2)


def _next_delay(steps_ms: Sequence[int], rest_ms: int, precision_ms: int) -> int:
    """Return the delay of the wait queue in which the due message of a deadline (the message that triggers its check)
    waits next. It is the shortest delay that ends at the due time or at most `precision_ms` later. If there is none, it
    is the longest that ends before the due time; the message is then delayed again.

    :param steps_ms: delays of the wait queues.
    :param rest_ms: milliseconds until the due time.
    """
    fitting = [step for step in steps_ms if rest_ms <= step <= rest_ms + precision_ms]
    return min(fitting) if fitting else max(step for step in steps_ms if step < rest_ms)


def _timestamp_ms(instant: datetime) -> int:
    if instant.tzinfo is None:
        raise ConfigError(f"{instant} has no time zone: use datetime(..., tzinfo=UTC)")
    return int(instant.timestamp() * 1000)


__all__ = ["Deadline", "DeadlineOutcome", "DeadlineStatistics"]
