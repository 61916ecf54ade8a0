"""A migration from its plan to its certificate: it copies definitions, waits for consumers, and keeps the queues moving."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from warren.broker.shovel.shovel_uri import ShovelUri
from warren.cli.migrate.broker_api import (
    STATISTICS_SECONDS,
    BrokerApi,
    Overview,
    QueueInfo,
    copied_definitions,
)
from warren.cli.migrate.certificate import Certificate, QueueCertificate
from warren.cli.migrate.plan import Delays, Plan, QueuePlan, Way, find_problems, way_of
from warren.cli.migrate.queue_move import MigrationRefused, MovedQueue
from warren.cli.migrate.session import QueueInUse, Session, SessionEnded
from warren.cli.migrate.state_folder import StateFolder
from warren.sdk.planning import ListingError

BACKOFF_SECONDS: Final = (0.2, 0.5, 1.0, 2.0, 5.0)
"""Seconds between attempts to connect; the last one is repeated."""


@dataclass(frozen=True)
class Side:
    """One of the two brokers."""

    uri: ShovelUri
    shown: str
    """URL without its password."""
    api: BrokerApi


@dataclass(frozen=True)
class Options:
    """Options of a migration."""

    included: re.Pattern[str]
    excluded: re.Pattern[str] | None
    delays: Delays | None
    """Handling of delay queues; None moves them from a source that tells the remaining time, and else waits."""
    window: int
    """Most messages of a queue that are published and not confirmed."""
    interval: float
    """Seconds between two looks at the source."""
    patience: float
    """Seconds without a connection to one of the brokers, after which the migration ends."""
    until_empty: bool
    """True to end as soon as all queues are empty, even if clients are connected to the source."""


@dataclass
class Waiting:
    """A queue of the source whose consumers have not left yet."""

    moved: MovedQueue
    clear_since: float | None = None
    """Time since which the source shows no consumers and no unacknowledged messages; None if it shows some."""
    told: str = ""
    """Last line about it."""


@dataclass
class View:
    """The source, as its HTTP API shows it."""

    queues: dict[str, QueueInfo]
    connections: int
    delayed: int


@dataclass
class _Progress:
    empty_since: float | None = None
    known: frozenset[str] = frozenset()
    """Queues of the source at the last copy of the definitions."""
    waiting: dict[str, Waiting] = field(default_factory=dict)
    moving: dict[str, MovedQueue] = field(default_factory=dict)
    left_to_wait: set[str] = field(default_factory=set)
    """Queues of the source whose messages wait there for their TTL."""
    told_empty: bool = False


class Migration:
    """A migration.

    :param tell: prints a line about the progress.
    """

    def __init__(self, source: Side, target: Side, options: Options, tell: Callable[[str], None]) -> None:
        self._source = source
        self._target = target
        self._options = options
        self._tell = tell
        self._source_overview = Overview("", "", frozenset())
        self._target_overview = Overview("", "", frozenset())
        self._progress = _Progress()
        self._impersonates = False
        self._stopping = asyncio.Event()

    # -- plan

    def plan(self) -> Plan:
        """Return what would be moved and what cannot be. Nothing is changed.

        :raises ListingError: if an HTTP API does not answer, or refuses the user.
        """
        self._look()
        queues = self._source.api.queues()
        ways = {queue.name: self._way(queue) for queue in queues}
        definitions = self._definitions()
        simple = {name: way for name, (way, _) in ways.items()}
        problems, risks = find_problems(queues, simple, definitions, self._target_overview)
        return Plan(
            [
                QueuePlan(
                    queue.name,
                    queue.type,
                    *ways[queue.name],
                    queue.ready or 0,
                    queue.unacknowledged or 0,
                    queue.consumers or 0,
                )
                for queue in queues
            ],
            problems,
            risks,
            {kind: len(each) for kind, each in definitions.items()},
            self._source.api.other_connections(),
            self._delayed_messages(),
        )

    def _look(self) -> None:
        self._source_overview = self._source.api.overview()
        self._target_overview = self._target.api.overview()
        self._impersonates = "impersonator" in self._target.api.user_tags()

    def _way(self, queue: QueueInfo) -> tuple[Way, str]:
        delays = self._options.delays
        if delays is None:
            delays = Delays.MOVE if self._source_overview.is_warren else Delays.WAIT
        return way_of(queue, delays, self._options.included, self._options.excluded)

    def _definitions(self) -> dict[str, list[dict[str, object]]]:
        return copied_definitions(
            self._source.api.definitions(),
            self._target.api.definitions(),
            self._source.api.virtual_host,
            self._target.api.virtual_host,
        )

    # -- run

    def stop(self) -> None:
        """End the migration before it is complete, after the confirms of what was published."""
        self._stopping.set()

    async def run(self, folder: StateFolder) -> Certificate | None:
        """Move until the source is empty; return the certificate, or None if `stop` was called.

        :raises MigrationRefused: if a broker refuses something, or cannot be reached for too long.
        """
        attempts, since, last = 0, time.monotonic(), ""
        while not self._stopping.is_set():
            session: Session | None = None
            try:
                await asyncio.to_thread(self._look)
                session = Session(
                    self._source.uri,
                    self._target.uri,
                    folder.state.migration,
                    self._options.window,
                    self._impersonates,
                    lambda queue, sequence: folder.note_copy(queue.name, sequence),
                )
                await session.open()
                if attempts:
                    self._tell("connected again")
                await self._copy_definitions()
                attempts, last = 0, ""
                finished = await self._move(session, folder)
                if not finished:
                    return None
                return await self._certify(session, folder)
            except (SessionEnded, ListingError) as ended:
                since = time.monotonic() if not attempts else since
                if time.monotonic() - since > self._options.patience:
                    raise MigrationRefused(
                        f"{ended}; no connection for {self._options.patience:g} s"
                    ) from None
                if str(ended) != last:
                    self._tell(f"{ended}; connecting again")
                    last = str(ended)
            finally:
                if session is not None:
                    await session.close()
            pause = BACKOFF_SECONDS[min(attempts, len(BACKOFF_SECONDS) - 1)]
            attempts += 1
            await self._pause(pause)
        return None

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            return

    async def _copy_definitions(self) -> None:
        def copy() -> int:
            missing = self._definitions()
            if missing:
                self._target.api.import_definitions(missing)
            return sum(map(len, missing.values()))

        copied = await asyncio.to_thread(copy)
        if copied:
            self._tell(f"imported {copied} definitions into the target")

    async def _move(self, session: Session, folder: StateFolder) -> bool:
        """Move until the source is empty; return False if `stop` was called before."""
        progress = self._progress
        # Consumers may have come back while there was no connection: each queue is looked at again.
        for name, queue in progress.moving.items():
            progress.waiting[name] = Waiting(queue)
        progress.moving.clear()
        progress.empty_since = None
        while True:
            view = await asyncio.to_thread(self._view)
            await self._add_queues(view, folder)
            await self._start_queues(session, view)
            if await self._is_complete(session, view):
                await session.drain()
                await self._copy_definitions()
                return True
            if self._stopping.is_set():
                await session.drain()
                return False
            await session.wait(self._options.interval)

    def _view(self) -> View:
        api = self._source.api
        queues = {queue.name: queue for queue in api.queues()}
        return View(queues, api.other_connections(), self._delayed_messages())

    def _delayed_messages(self) -> int:
        """Return how many messages wait in delayed exchanges and for delayed retries; RabbitMQ does not list them."""
        return self._source.api.delayed_messages() if self._source_overview.is_warren else 0

    async def _add_queues(self, view: View, folder: StateFolder) -> None:
        """Take queues that are new into the migration, with their definitions."""
        progress, state = self._progress, folder.state
        names = frozenset(view.queues)
        if names == progress.known:
            return
        is_first = not progress.known
        progress.known = names
        if not is_first:
            await self._copy_definitions()
        for name, queue in view.queues.items():
            record = state.queues.get(name)
            if record is None:
                record = folder.add_queue(name, *self._way(queue))
            if record.way is Way.WAIT:
                progress.left_to_wait.add(name)
            if record.way is Way.MOVE and name not in progress.waiting and name not in progress.moving:
                moved = MovedQueue(
                    name,
                    record.number,
                    folder.open_journal(record),
                    queue.keeps_order,
                    queue.is_single_active,
                    queue.message_ttl,
                )
                progress.waiting[name] = Waiting(moved)
        folder.save()

    async def _start_queues(self, session: Session, view: View) -> None:
        progress, now = self._progress, time.monotonic()
        for name, waiting in list(progress.waiting.items()):
            queue = view.queues.get(name)
            if queue is None:
                continue
            if queue.consumers or queue.unacknowledged or queue.messages is None:
                waiting.clear_since = None
                self._tell_once(
                    waiting,
                    f"queue {name!r} waits: {queue.consumers or 0} consumers,"
                    f" {queue.unacknowledged or 0} unacknowledged messages",
                )
                continue
            if waiting.clear_since is None:
                waiting.clear_since = now
            if now - waiting.clear_since < self._settle_seconds:
                continue
            try:
                await session.start(waiting.moved)
            except QueueInUse:
                waiting.clear_since = None
                self._tell_once(waiting, f"queue {name!r} waits: another client consumes from it")
                continue
            del progress.waiting[name]
            progress.moving[name] = waiting.moved

    def _tell_once(self, waiting: Waiting, text: str) -> None:
        if text != waiting.told:
            waiting.told = text
            self._tell(text)

    @property
    def _settle_seconds(self) -> float:
        """Seconds for which the source has to show the same numbers before they count."""
        return 0.0 if self._source_overview.is_warren else STATISTICS_SECONDS

    async def _is_complete(self, session: Session, view: View) -> bool:
        """Return True if the source is empty, and nobody can publish there any more."""
        progress, now = self._progress, time.monotonic()
        is_empty = (
            not any(name in view.queues for name in progress.waiting)
            and not view.delayed
            and session.is_idle
            and all(
                not queue.messages
                for name, queue in view.queues.items()
                if name in progress.moving or name in progress.left_to_wait
            )
        )
        if is_empty and view.connections and not self._options.until_empty:
            if not progress.told_empty:
                progress.told_empty = True
                self._tell(
                    f"all queues are empty; waits for {view.connections} connections to the source to end"
                )
            is_empty = False
        if not is_empty:
            progress.empty_since = None
            return False
        if progress.empty_since is None:
            # At least two looks: what was published just before the first one is in the queues by the second.
            progress.empty_since = now
            return False
        if now - progress.empty_since < self._settle_seconds:
            return False
        for name in progress.moving:
            if await session.ready_messages(name):
                return False
        return session.is_idle

    # -- certificate

    async def _certify(self, session: Session, folder: StateFolder) -> Certificate:
        state, copies = folder.state, folder.copies()
        view = await asyncio.to_thread(self._view)
        found: list[QueueCertificate] = []
        totals: dict[str, int] = {}
        for name, record in state.queues.items():
            if record.way is not Way.MOVE:
                continue
            moved = self._progress.moving.get(name)
            journal = folder.open_journal(record) if moved is None else moved.journal
            digests = await asyncio.to_thread(journal.digests)
            left = await session.ready_messages(name)
            queue = view.queues.get(name)
            expires = queue is not None and queue.message_ttl is not None
            found.append(
                QueueCertificate(
                    name,
                    digests.read,
                    digests.confirmed,
                    digests.source,
                    digests.target,
                    left,
                    copies.get(name, 0),
                    expires,
                )
            )
            journal.close()
            if moved is not None:
                for count, value in vars(moved.counts).items():
                    totals[count] = totals.get(count, 0) + value
        await session.delete_exchanges()
        source, target = self._source_overview, self._target_overview
        return Certificate(
            state.migration,
            self._source.shown,
            self._target.shown,
            state.started,
            datetime.now(UTC).isoformat(timespec="seconds"),
            f"{source.product} {source.version}",
            f"{target.product} {target.version}",
            view.connections,
            found,
            {name: each.reason for name, each in state.queues.items() if each.way is Way.LEAVE},
            totals,
        )
