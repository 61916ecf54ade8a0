"""Outbox relay: of all processes one publishes the committed messages, in order for each ordering key, until the broker
confirms them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from warren.patterns.monotonic_time import monotonic_time
from warren.patterns.outbox.outbox_tables import OutboxRow, OutboxTables, PendingMessages
from warren.patterns.outbox.refusals import Refusal, Refusals
from warren.patterns.sql_connections import finish
from warren.sdk import App, Clock, PublishTimeout, TransportUnavailable, WarrenError
from warren.sdk.extend import describe_exception, poll_at

log: logging.Logger = logging.getLogger("warren.patterns")

BATCH: Final = 500
PUBLISH_SECONDS: Final = 30.0
FIRST_RETRY_SECONDS: Final = 1.0
MAX_RETRY_SECONDS: Final = 60.0
MAX_RETRY_TIMES: Final = 10_000
"""Largest number of refused messages for which the relay keeps the time of the next retry in memory."""
ERROR_PAUSE_SECONDS: Final = 1.0


@dataclass(slots=True)
class OutboxStatistics:
    """Counters of one `Outbox` in this process; other processes count their own."""

    added: int = 0
    """Messages that were written to the outbox, including those whose transaction was rolled back."""
    relayed: int = 0
    """Publishes that the broker confirmed. The number exceeds that of messages if some were published again."""
    failed: int = 0
    """Publishes that the broker refused, or did not confirm within 30 s. Each message is retried, and holds back later
    messages with the same `ordered_by`."""
    relaying: bool = False
    """True while this process is the relay: it holds the lease and publishes the outbox's messages."""
    oldest_ms: int | None = None
    """Time at which the oldest waiting message was added, in milliseconds since the epoch, according to the relay's
    last read; None if no message waited."""


@dataclass(slots=True)
class _Rescan:
    """Rescan in progress: the messages up to an id are read and published again, in turn with later messages, which need
    not wait for its end.

    :ivar up_to: id at which it ends.
    :ivar after: id up to which it has come.
    :ivar skipped_up_to: highest id of the messages that were refused since its begin and got no retry time.
    """

    up_to: int
    after: int = 0
    skipped_up_to: int = 0


class _LeaseLost(Exception):
    """Error that ends the relay's work: its lease expired, and another process holds it now, or has held it."""


class _LeaseDoubtful(WarrenError):
    """Refusal of a write: the lease may have expired, because it was not renewed for two thirds of its duration."""

    def __init__(self) -> None:
        super().__init__("the relay's lease may have expired", retryable=True)


class Relay:
    """Task that publishes the outbox's messages while this process holds the lease, until it is cancelled.

    Of two messages with the same `ordered_by` the second is published after the confirm of the first. Messages with
    different ordering keys, or with none, are published concurrently. A message is deleted after its confirm, so a
    crash in between publishes it again, with the same id.

    If this process stands still, or does not reach the database, another one may take the lease and publish everything;
    a message that this process has read before would then be an old copy behind newer messages. Therefore each write is
    preceded by a look at the clock: when the last successful request for the lease was sent two thirds of a lease ago,
    nothing more is written. The relay takes the lease again, and reads the messages afresh. The last third is for the
    way of a message to the broker, and for clocks that do not run equally fast.
    """

    def __init__(
        self,
        tables: OutboxTables,
        refusals: Refusals,
        statistics: OutboxStatistics,
        *,
        lease_ms: int,
        poll: float,
        retry: float,
    ) -> None:
        self.wakeup: asyncio.Event = asyncio.Event()
        self._tables = tables
        self._refusals = refusals
        self._statistics = statistics
        self._lease_ms = lease_ms
        self._poll = poll
        self._first_retry = retry
        self._holder = secrets.token_hex(8)
        self._may_write_until = float("-inf")
        """Monotonic time at which two thirds of the lease have passed since the last successful request for it was
        sent."""
        self._working = True
        self._renewing = False
        self._retry_times: dict[str | int, tuple[float, float]] = {}
        """Refused messages: ordering key (or id of a message without one) -> (time of the next retry, last wait in
        seconds)."""
        self._skipped_up_to = 0
        """Highest id of the refused messages that have no retry time, because there are too many. The messages up to
        this id are only read by a rescan."""
        self._rescan_at = 0.0
        """Time of the next rescan, which reads the messages up to `_skipped_up_to` again."""
        self._rescan: _Rescan | None = None

    @property
    def busy(self) -> bool:
        """True while there may be messages that this process has committed but not published, and before its first
        attempt to take the lease."""
        return self._working or self._renewing or (self._statistics.relaying and self.wakeup.is_set())

    async def run(self, app: App) -> None:
        """Publish messages until cancelled. While the database or the broker fails, wait and retry."""
        self._refusals.begin()
        while True:
            failed = True
            try:
                await self._tables.create()
                await self._refusals.create()
                relays = True
                while relays and await self._request_lease(app.clock, self._tables.take_lease):
                    relays = await self._relay_while_leased(app)
                failed = False
            except TransportUnavailable as error:
                # Another process may reach the broker.
                log.warning("event=outbox.broker_lost table=%s error=%s", self._tables.messages.name, error)
                await self.release()
            except Exception as error:  # Mostly the database: the relay retries as long as the App runs.
                log.warning(
                    "event=outbox.relay_interrupted table=%s error=%s", self._tables.messages.name, error
                )
                # The error may be that somebody has dropped a table.
                self._tables.forget_created()
                self._refusals.forget_created()
            finally:
                self._statistics.relaying = self._working = False
            if failed:
                await _sleep(app.clock, ERROR_PAUSE_SECONDS, self._begin_work, polls=False)
            else:
                await _sleep(app.clock, min(self._poll, self._lease_ms / 3000), self._begin_work, polls=True)

    async def release(self) -> None:
        """Release the lease, so that another process can become the relay without waiting for its expiry. If the
        database fails, the lease expires later."""
        with contextlib.suppress(Exception):
            await self._tables.release_lease(self._holder)

    async def _request_lease(self, clock: Clock, request: Callable[[str, int], Awaitable[bool]]) -> bool:
        """Take or renew the lease, and return whether this process has it.

        :param request: method of the tables, `take_lease` or `renew_lease`.
        """
        # Before the request: the lease begins when the database executes it, at an unknown time before the answer.
        sent = monotonic_time(clock)
        held = await request(self._holder, self._lease_ms)
        self._may_write_until = sent + self._lease_ms / 1000 * 2 / 3 if held else float("-inf")
        return held

    def _check_lease(self, clock: Clock) -> None:
        """Do nothing while this process certainly holds the lease.

        :raises _LeaseDoubtful: it may have expired.
        """
        if monotonic_time(clock) >= self._may_write_until:
            raise _LeaseDoubtful

    async def _relay_while_leased(self, app: App) -> bool:
        """Publish messages until the lease is lost or may have expired. Return False if it is lost, and True if it
        should be taken again at once."""
        self._statistics.relaying = True
        relaying = asyncio.ensure_future(self._relay(app))
        renewing = asyncio.ensure_future(self._renew(app.clock))
        try:
            done, _ = await asyncio.wait((relaying, renewing), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (relaying, renewing):
                task.cancel()
            await asyncio.wait((relaying, renewing))
            self._statistics.relaying = False
        try:
            for task in done:
                task.result()
        except _LeaseDoubtful:
            log.warning("event=outbox.lease_doubtful table=%s", self._tables.messages.name)
            return True
        except _LeaseLost:
            log.warning("event=outbox.lease_lost table=%s", self._tables.messages.name)
        return False

    async def _renew(self, clock: Clock) -> None:
        while True:
            await _sleep(clock, self._lease_ms / 3000, self._begin_renewal, polls=True)
            try:
                if not await self._request_lease(clock, self._tables.renew_lease):
                    raise _LeaseLost
            finally:
                self._renewing = False

    def _begin_work(self) -> None:
        self._working = True

    def _begin_renewal(self) -> None:
        self._renewing = True

    async def _relay(self, app: App) -> None:
        found = False
        while True:
            self.wakeup.clear()
            more_to_check = await self._refusals.forget_missing()
            if self._retry_times or self._skipped_up_to:
                await self._drop_requested_waits()
            is_late = monotonic_time(app.clock) >= self._may_write_until
            # The renewal is late because this process stood still, or because a virtual clock left it out.
            if is_late and not await self._request_lease(app.clock, self._tables.renew_lease):
                raise _LeaseLost
            now = monotonic_time(app.clock)
            off = [name for name, (until, _) in self._retry_times.items() if until > now]
            look = partial(
                self._tables.pending,
                BATCH,
                excluded_keys=[name for name in off if isinstance(name, str)],
                excluded_ids=[name for name in off if isinstance(name, int)],
            )
            new = await look(after=self._skipped_up_to)
            waits = off or self._skipped_up_to
            self._statistics.oldest_ms = (
                await self._tables.oldest_ms() if waits else _oldest_added_ms(new.rows)
            )
            if self._skipped_up_to and self._rescan is None and now >= self._rescan_at:
                # This also drops the retry times of messages that another process relayed meanwhile.
                self._retry_times = {name: wait for name, wait in self._retry_times.items() if wait[0] > now}
                self._rescan = _Rescan(self._skipped_up_to)
            # An ordering key is never in both: one that has a message up to `_skipped_up_to` is held back after it.
            again: PendingMessages | None = None
            if self._rescan is not None:
                again = await look(after=self._rescan.after, up_to=self._rescan.up_to)
            if new.rows or new.held_back_up_to is not None or again is not None:
                found = True
                await self._publish(app, [*(again.rows if again is not None else ()), *new.rows])
                # Not earlier: messages that were not tried because the connection was lost must not be skipped.
                self._skipped_up_to = max(self._skipped_up_to, new.held_back_up_to or 0)
                if again is not None:
                    self._continue_rescan(again.searched_up_to, monotonic_time(app.clock))
            elif not more_to_check:
                self._working = False
                await self._wait_for_wakeup(app.clock, now, polls=not found)
                found = False

    def _continue_rescan(self, searched_up_to: int | None, now: float) -> None:
        """Note how far the rescan has come. At its end, only messages that were refused again are skipped.

        :param searched_up_to: id up to which it has come; None if it is at its end.
        :param now: present time in seconds, by `monotonic_time`.
        """
        rescan = self._rescan
        if rescan is not None and searched_up_to is not None:
            rescan.after = searched_up_to
        elif rescan is not None:
            self._rescan = None
            self._skipped_up_to = rescan.skipped_up_to
            self._rescan_at = now + MAX_RETRY_SECONDS

    async def _publish(self, app: App, rows: list[OutboxRow]) -> None:
        """Publish messages in rounds: first the oldest message of each ordering key and all messages without one, then
        the second of each key, and so on.

        :param rows: messages in the order in which they were added.
        :raises TransportUnavailable: the connection was lost; the messages without a confirm stay in the table.
        :raises _LeaseDoubtful: the lease may have expired; the messages without a confirm stay in the table.
        """
        check_lease = partial(self._check_lease, app.clock)
        rounds: list[list[OutboxRow]] = []
        seen: dict[str, int] = {}
        for row in rows:
            turn = 0 if row.ordered_by is None else seen.get(row.ordered_by, 0)
            if row.ordered_by is not None:
                seen[row.ordered_by] = turn + 1
            if turn == len(rounds):
                rounds.append([])
            rounds[turn].append(row)
        confirmed: list[int] = []
        refusals: list[Refusal] = []
        failed: set[str] = set()
        skipped = 0
        doubtful: _LeaseDoubtful | None = None
        try:
            for each in rounds:
                due = [row for row in each if row.ordered_by is None or row.ordered_by not in failed]
                for row, problem in zip(due, await _publish_and_confirm(app, due, check_lease), strict=True):
                    if problem is None:
                        confirmed.append(row.id)
                        self._retry_times.pop(_ordering_key(row), None)
                        continue
                    if isinstance(problem, TransportUnavailable):
                        raise problem
                    if isinstance(problem, _LeaseDoubtful):
                        doubtful = problem
                        continue
                    if row.ordered_by is not None:
                        failed.add(row.ordered_by)
                    wait, remembered = self._schedule_retry(row, problem, monotonic_time(app.clock))
                    refusals.append(Refusal(row.id, row.ordered_by, str(problem), wait))
                    if not remembered:
                        skipped = max(skipped, row.id)
                if doubtful is not None:
                    raise doubtful
            # Only now: messages that were not tried because the connection was lost must not be skipped.
            if skipped and not self._skipped_up_to:
                self._rescan_at = monotonic_time(app.clock) + MAX_RETRY_SECONDS
            self._skipped_up_to = max(self._skipped_up_to, skipped)
            if self._rescan is not None:
                self._rescan.skipped_up_to = max(self._rescan.skipped_up_to, skipped)
        finally:
            self._statistics.relayed += len(confirmed)
            if confirmed:
                await finish(self._tables.delete(confirmed))
        await self._refusals.forget(confirmed)
        await self._refusals.record(refusals, int(app.clock.now() * 1000))

    async def _drop_requested_waits(self) -> None:
        """Drop the waits of refused messages that somebody wants to be retried now, or has skipped."""
        requests = await self._refusals.take_requests()
        while requests:
            for number, ordered_by in requests:
                self._retry_times.pop(number if ordered_by is None else ordered_by, None)
            self._rescan = _Rescan(self._skipped_up_to) if self._skipped_up_to else None
            requests = await self._refusals.take_requests()

    def _schedule_retry(self, row: OutboxRow, problem: WarrenError, now: float) -> tuple[float, bool]:
        """Schedule a retry of a message that the broker has refused or not confirmed, with a wait that doubles each time.

        :param problem: error of its publish, for the log.
        :param now: present time in seconds, by `monotonic_time`.
        :return: the wait in seconds, and whether the retry is scheduled. It is not if `MAX_RETRY_TIMES` messages have
            one already; the message is then skipped, and read again by the next rescan.
        """
        name = _ordering_key(row)
        _, before = self._retry_times.get(name, (0.0, 0.0))
        wait = min(2 * before, MAX_RETRY_SECONDS) if before else self._first_retry
        remembered = bool(before) or len(self._retry_times) < MAX_RETRY_TIMES
        if remembered:
            self._retry_times[name] = now + wait, wait
        else:
            wait = MAX_RETRY_SECONDS
        self._statistics.failed += 1
        # A confirm that is late tells nothing about the message: a node of the cluster may have failed.
        if isinstance(problem, PublishTimeout):
            log.warning(
                "event=outbox.message_unconfirmed table=%s id=%d ordered_by=%s message_id=%s retry_seconds=%.0f error=%s",
                self._tables.messages.name, row.id, row.ordered_by, row.outgoing.message_id, wait, problem,
            )  # fmt: skip
        else:
            log.error(
                "event=outbox.message_refused table=%s id=%d ordered_by=%s message_id=%s retry_seconds=%.0f error=%s",
                self._tables.messages.name, row.id, row.ordered_by, row.outgoing.message_id, wait, problem,
            )  # fmt: skip
        return wait, remembered

    async def _wait_for_wakeup(self, clock: Clock, looked_at: float, *, polls: bool) -> None:
        """Wait until this process has committed a message, until the retry of a refused message is due, or until it is
        time to look for messages of other processes.

        :param looked_at: time of the last look, in seconds by `monotonic_time`.
        :param polls: False if this look must not be left out, also by a virtual clock, because the last one found
            messages.
        """
        look_at = clock.now() + self._poll
        look = poll_at(clock, look_at, self.wakeup.set) if polls else clock.call_at(look_at, self.wakeup.set)
        timers = [look]
        retries = [until for until, _ in self._retry_times.values() if until > looked_at]
        if self._skipped_up_to:
            retries.append(self._rescan_at)
        if retries:
            wait = max(0.0, min(retries) - monotonic_time(clock))
            timers.append(clock.call_at(clock.now() + wait, self.wakeup.set))
        try:
            await self.wakeup.wait()
            self._working = True
        finally:
            for timer in timers:
                timer.cancel()


async def _sleep(clock: Clock, seconds: float, begin: Callable[[], None], *, polls: bool) -> None:
    """Wait for `seconds`.

    :param begin: called when the time has come, before the waiting task runs, so that a test on a virtual clock sees
        that work is in progress.
    :param polls: True if the wait may be longer, because a virtual clock leaves out a poll that can find nothing.
    """
    due = asyncio.Event()

    def end_wait() -> None:
        begin()
        due.set()

    due_at = clock.now() + seconds
    timer = poll_at(clock, due_at, end_wait) if polls else clock.call_at(due_at, end_wait)
    try:
        await due.wait()
    finally:
        timer.cancel()


async def _publish_and_confirm(
    app: App, rows: list[OutboxRow], check_lease: Callable[[], None]
) -> list[WarrenError | None]:
    """Publish messages of the outbox concurrently. Return for each of them, in the same order, the error, or None if
    the broker has confirmed it.

    :param rows: rows of the messages in the outbox table.
    :param check_lease: raises `_LeaseDoubtful` if nothing more may be written; called directly before each write.
    """
    sent: list[asyncio.Future[None] | WarrenError] = []
    try:
        for row in rows:
            if sent and isinstance(sent[-1], _LeaseDoubtful):
                sent.append(sent[-1])
                continue
            try:
                sent.append(await app.submit_encoded(row.outgoing, PUBLISH_SECONDS, check_lease))
            except WarrenError as error:
                sent.append(error)
        futures = [entry for entry in sent if isinstance(entry, asyncio.Future)]
        if futures:
            await asyncio.wait(futures)
    except asyncio.CancelledError:
        for entry in sent:
            if isinstance(entry, asyncio.Future):
                entry.cancel()
        raise
    problems = [entry.exception() if isinstance(entry, asyncio.Future) else entry for entry in sent]
    return [
        problem if problem is None or isinstance(problem, WarrenError) else _as_warren_error(problem)
        for problem in problems
    ]


def _as_warren_error(problem: BaseException) -> WarrenError:
    return WarrenError(describe_exception(problem), retryable=True, outcome="unknown")


def _ordering_key(row: OutboxRow) -> str | int:
    return row.id if row.ordered_by is None else row.ordered_by


def _oldest_added_ms(rows: list[OutboxRow]) -> int | None:
    return rows[0].added_ms if rows else None


__all__ = ["OutboxStatistics", "Relay"]
