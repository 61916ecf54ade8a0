"""The relay of an outbox: one among all processes publishes what is committed, in order per key, until it is confirmed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from dataclasses import dataclass
from typing import Final

from warren.patterns.outbox.outbox_tables import OutboxTables, Row
from warren.sdk import App, Clock, TransportUnavailable, WarrenError

log: logging.Logger = logging.getLogger("warren.patterns")

BATCH: Final = 500
PUBLISH_SECONDS: Final = 30.0
FIRST_RETRY: Final = 1.0
LAST_RETRY: Final = 60.0
REMEMBERED: Final = 10_000
"""So many that were refused have each a wait of their own; the memory for them is bounded, whatever is refused."""
AFTER_ERROR: Final = 1.0


@dataclass(slots=True)
class OutboxStatistics:
    """What this process has seen; other processes count their own."""

    added: int = 0
    """Messages that were written, whether or not their transaction committed."""
    relayed: int = 0
    """Messages that the broker confirmed. More than there were, if some were published again."""
    failed: int = 0
    """Publishes that were refused; each is tried again, and holds back what follows with the same `ordered_by`."""
    relaying: bool = False
    """Whether this process is the one that relays."""
    oldest_ms: int | None = None
    """When the oldest message was added that waited as this process, relaying, looked last; None: none waited."""


class _LeaseLost(Exception):
    """Another process relays now."""


class Relay:
    """Runs until it is cancelled; relays while it holds the lease.

    Of two messages with the same `ordered_by` the second is published when the first is confirmed; what has no order, and
    what has another, goes at the same time. A message is deleted after its confirm, so that a crash in between publishes it
    again, with the same id.
    """

    def __init__(
        self, tables: OutboxTables, statistics: OutboxStatistics, *, lease_ms: int, poll: float, retry: float
    ) -> None:
        self.news: asyncio.Event = asyncio.Event()
        self._tables = tables
        self._statistics = statistics
        self._lease_ms = lease_ms
        self._poll = poll
        self._first_retry = retry
        self._holder = secrets.token_hex(8)
        self._working = True
        self._put_off: dict[str | int, tuple[float, float]] = {}
        """By `ordered_by`, or by id where there is none: until when, and the wait that led there."""
        self._passed = 0
        """More was refused than is remembered: what has an id up to this is looked at again after all that is behind it."""
        self._look_again = 0.0
        """Not before this."""

    @property
    def busy(self) -> bool:
        """Whether what this process has committed may be on its way, or it has not asked yet who relays."""
        return self._working or (self._statistics.relaying and self.news.is_set())

    async def run(self, app: App) -> None:
        while True:
            try:
                await self._tables.make()
                if await self._tables.take_lease(self._holder, self._lease_ms):
                    await self._relay_while_leased(app)
                self._working = False
                await app.clock.sleep(min(self._poll, self._lease_ms / 3000))
            except TransportUnavailable as error:
                # Another process may reach the broker.
                log.warning("outbox.no_broker table=%s error=%s", self._tables.messages.name, error)
                await self.release()
                await app.clock.sleep(AFTER_ERROR)
            except Exception as error:  # The database, mostly: it is waited for as long as the App runs.
                log.warning("outbox.interrupted table=%s error=%s", self._tables.messages.name, error)
                await app.clock.sleep(AFTER_ERROR)
            finally:
                self._statistics.relaying = self._working = False

    async def release(self) -> None:
        """Let another process relay at once; if the database does not hear of it, when the lease is over."""
        with contextlib.suppress(Exception):
            await self._tables.release_lease(self._holder)

    async def _relay_while_leased(self, app: App) -> None:
        self._statistics.relaying = True
        relaying = asyncio.ensure_future(self._relay(app))
        renewing = asyncio.ensure_future(self._renew(app.clock))
        try:
            done, _ = await asyncio.wait((relaying, renewing), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (relaying, renewing):
                task.cancel()
            await asyncio.wait((relaying, renewing))
        for task in done:
            with contextlib.suppress(_LeaseLost):
                task.result()

    async def _renew(self, clock: Clock) -> None:
        while True:
            await clock.sleep(self._lease_ms / 3000)
            if not await self._tables.take_lease(self._holder, self._lease_ms):
                log.warning("outbox.lease_lost table=%s", self._tables.messages.name)
                raise _LeaseLost

    async def _relay(self, app: App) -> None:
        while True:
            self.news.clear()
            now = app.clock.now()
            off = [name for name, (until, _) in self._put_off.items() if until > now]
            rows = await self._tables.waiting(
                BATCH,
                but_keys=[name for name in off if isinstance(name, str)],
                but_ids=[name for name in off if isinstance(name, int)],
                after=self._passed,
            )
            held_back = off or self._passed
            self._statistics.oldest_ms = await self._tables.oldest_ms() if held_back else _oldest(rows)
            if self._passed and len(rows) < BATCH and now >= self._look_again:
                # Also what another process relayed meanwhile is forgotten so.
                self._put_off = {name: wait for name, wait in self._put_off.items() if wait[0] > now}
                self._passed = 0
            elif rows:
                await self._publish(app, rows)
            else:
                self._working = False
                await self._wait_for_news(app.clock)

    async def _publish(self, app: App, rows: list[Row]) -> None:
        """Publish in rounds: the first of each key and all without one, then the second of each key, and so on."""
        rounds: list[list[Row]] = []
        seen: dict[str, int] = {}
        for row in rows:
            turn = 0 if row.ordered_by is None else seen.get(row.ordered_by, 0)
            if row.ordered_by is not None:
                seen[row.ordered_by] = turn + 1
            if turn == len(rounds):
                rounds.append([])
            rounds[turn].append(row)
        confirmed: list[int] = []
        failed: set[str] = set()
        passed = 0
        try:
            for each in rounds:
                going = [row for row in each if row.ordered_by is None or row.ordered_by not in failed]
                for row, problem in zip(going, await _confirms(app, going), strict=True):
                    if problem is None:
                        confirmed.append(row.id)
                        self._put_off.pop(_held_by(row), None)
                        continue
                    if isinstance(problem, TransportUnavailable):
                        raise problem
                    if row.ordered_by is not None:
                        failed.add(row.ordered_by)
                    if not self._hold_back(row, problem, app.clock.now()):
                        passed = max(passed, row.id)
            # Only now: what a lost connection kept from being tried must not be passed over.
            if passed and not self._passed:
                self._look_again = app.clock.now() + LAST_RETRY
            self._passed = max(self._passed, passed)
        finally:
            self._statistics.relayed += len(confirmed)
            if confirmed:
                await asyncio.shield(self._tables.delete(confirmed))

    def _hold_back(self, row: Row, problem: WarrenError, now: float) -> bool:
        """Whether it is remembered."""
        name = _held_by(row)
        _, before = self._put_off.get(name, (0.0, 0.0))
        wait = min(2 * before, LAST_RETRY) if before else self._first_retry
        remembered = bool(before) or len(self._put_off) < REMEMBERED
        if remembered:
            self._put_off[name] = now + wait, wait
        else:
            wait = LAST_RETRY
        self._statistics.failed += 1
        log.error(
            "outbox.refused table=%s id=%d ordered_by=%s message_id=%s retry_in=%.0fs error=%s",
            self._tables.messages.name, row.id, row.ordered_by, row.outgoing.message_id, wait, problem,
        )  # fmt: skip
        return remembered

    async def _wait_for_news(self, clock: Clock) -> None:
        """Until this process has committed something, or for as long as others may have."""
        timer = clock.call_at(clock.now() + self._poll, self.news.set)
        try:
            await self.news.wait()
            self._working = True
        finally:
            timer.cancel()


async def _confirms(app: App, rows: list[Row]) -> list[WarrenError | None]:
    """Publish them in a window; for each, why the broker does not have it."""
    sent: list[asyncio.Future[None] | WarrenError] = []
    try:
        for row in rows:
            try:
                sent.append(await app.submit_encoded(row.outgoing, PUBLISH_SECONDS))
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
        problem if problem is None or isinstance(problem, WarrenError) else _other(problem)
        for problem in problems
    ]


def _other(problem: BaseException) -> WarrenError:
    return WarrenError(f"{type(problem).__name__}: {problem}", retryable=True, outcome="unknown")


def _held_by(row: Row) -> str | int:
    return row.id if row.ordered_by is None else row.ordered_by


def _oldest(rows: list[Row]) -> int | None:
    return rows[0].added_ms if rows else None


__all__ = ["OutboxStatistics", "Relay"]
