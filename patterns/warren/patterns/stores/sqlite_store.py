"""Records in a SQLite file: for one machine, with nothing to install and nothing to run."""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple

from warren.core.errors import UsageError
from warren.patterns.stores.store import StoreUnavailable, SwapResult

APPLICATION_ID: Final = 0x57415252  # "WARR", so that a foreign database is recognised and left alone
FORMAT: Final = 1
BATCH: Final = 1000
SWEEP_SECONDS: Final = 30.0
SWEEP_ROWS: Final = 5000
LAST_CHARACTER: Final = chr(0x10FFFF)


class SqliteStore:
    """Decisions in a SQLite database, usable by several processes of one machine (not over a network file
    system).

    One thread does all the work: what is asked while a transaction is written becomes the next transaction,
    so that many decisions share one sync. `synchronous=FULL` in WAL mode syncs at every commit: a message is
    acknowledged because of what was decided, so a decision must not be younger than the disk. `NORMAL` would
    lose the last commits in a power failure, and with them the reason why a message was acknowledged (SQLite
    documentation, "PRAGMA synchronous").

    :param path: the database file; it is made if missing, its folder is not.
    :param timeout: seconds to wait while another process writes; after it, `StoreUnavailable`. Default 5.
    :raises UsageError: the file cannot be opened, is no database of decisions, or is of a newer format.
    """

    def __init__(self, path: str | Path, *, timeout: float = 5.0) -> None:
        self._path = Path(path)
        self._timeout = timeout
        self._requests: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._worker: threading.Thread | None = None
        # Opened and closed here once, so that a wrong path is said at start and not by the first message.
        _open(self._path, self._timeout).close()

    async def compare_and_set(
        self, key: str, expected: bytes | None, record: bytes | None, *, keep_ms: int
    ) -> SwapResult:
        loop = asyncio.get_running_loop()
        request = _Request(key, expected, record, keep_ms, loop, loop.create_future())
        if self._worker is None:
            self._worker = threading.Thread(
                target=self._work, args=(self._requests,), name=f"warren {self._path.name}", daemon=True
            )
            self._worker.start()
        self._requests.put(request)
        return await request.answer

    async def records(self, prefix: str) -> AsyncIterator[tuple[str, bytes]]:
        after = ""
        while page := await asyncio.to_thread(self._page, prefix, after):
            for key, record in page:
                yield key, record
            after = page[-1][0]

    def _page(self, prefix: str, after: str) -> list[tuple[str, bytes]]:
        try:
            # A connection of its own: readers and the writer do not wait for each other (SQLite, "Write-Ahead Logging").
            with closing(_open(self._path, self._timeout)) as database:
                return database.execute(
                    "SELECT key, record FROM records WHERE key >= ? AND key < ? AND key > ? ORDER BY key LIMIT ?",
                    (prefix, prefix + LAST_CHARACTER, after, BATCH),
                ).fetchall()
        except (sqlite3.Error, UsageError) as error:
            raise StoreUnavailable(f"no records from {self._path}: {error}") from error

    async def close(self) -> None:
        worker, self._worker = self._worker, None
        if worker is None:
            return
        self._requests.put(None)
        # What is asked from now on goes to the next worker, not to the one that ends.
        self._requests = queue.SimpleQueue()
        await asyncio.to_thread(worker.join)

    def _work(self, requests: queue.SimpleQueue[_Request | None]) -> None:
        """The worker: takes what has gathered, decides it in one transaction, answers; until it is told to
        end."""
        database: sqlite3.Connection | None = None
        swept = 0.0
        ending = False
        while not ending:
            batch, ending = _gather(requests)
            try:
                if database is None:
                    database = _open(self._path, self._timeout)
                database.execute("BEGIN IMMEDIATE")
                now = time.time()
                answers = [_swap(database, request, now) for request in batch]
                # While there is more to forget, each batch takes its part: no rate of decisions outgrows the cleaning.
                if now - swept > SWEEP_SECONDS and _sweep(database, now) < SWEEP_ROWS:
                    swept = now
                database.execute("COMMIT")
            except (
                Exception
            ) as error:  # Whatever it is, those who wait must hear of it, and the next be served.
                # Nothing is tried again on a connection that failed: its state is not known.
                if database is not None:
                    database.close()
                    database = None
                _answer(batch, StoreUnavailable(f"no decision from {self._path}: {error}"))
            else:
                _answer(batch, answers)
        if database is not None:
            database.close()

    async def __aenter__(self) -> SqliteStore:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"SqliteStore({str(self._path)!r})"


class _Request(NamedTuple):
    key: str
    expected: bytes | None
    record: bytes | None
    keep_ms: int
    loop: asyncio.AbstractEventLoop
    answer: asyncio.Future[SwapResult]


def _gather(requests: queue.SimpleQueue[_Request | None]) -> tuple[list[_Request], bool]:
    """Wait for a request and take those that came with it, at most `BATCH`; also whether the worker shall
    end."""
    batch: list[_Request] = []
    item = requests.get()
    while True:
        if item is None:
            return batch, True
        batch.append(item)
        if len(batch) >= BATCH:
            return batch, False
        try:
            item = requests.get_nowait()
        except queue.Empty:
            return batch, False


def _swap(database: sqlite3.Connection, request: _Request, now: float) -> SwapResult:
    row = database.execute("SELECT record FROM records WHERE key = ?", (request.key,)).fetchone()
    current: bytes | None = row[0] if row else None
    if current != request.expected:
        return SwapResult(False, current)
    if request.record is None:
        database.execute("DELETE FROM records WHERE key = ?", (request.key,))
    elif request.record != current:
        database.execute(
            "INSERT INTO records (key, record, keep_until) VALUES (?, ?, ?) "
            "ON CONFLICT (key) DO UPDATE SET record = excluded.record, keep_until = excluded.keep_until",
            (request.key, request.record, now + request.keep_ms / 1000),
        )
    return SwapResult(True, request.record)


def _sweep(database: sqlite3.Connection, now: float) -> int:
    # Bounded, so that no decision waits long behind the cleaning; what is left goes with the next sweep.
    return database.execute(
        "DELETE FROM records WHERE key IN (SELECT key FROM records WHERE keep_until < ? ORDER BY keep_until LIMIT ?)",
        (now, SWEEP_ROWS),
    ).rowcount


def _answer(batch: list[_Request], answers: list[SwapResult] | StoreUnavailable) -> None:
    """Hand the answers back, one wake-up a loop: a callback a request would cost more than the decision."""
    by_loop: dict[
        asyncio.AbstractEventLoop, list[tuple[asyncio.Future[SwapResult], SwapResult | StoreUnavailable]]
    ] = {}
    for position, request in enumerate(batch):
        answer = answers if isinstance(answers, StoreUnavailable) else answers[position]
        by_loop.setdefault(request.loop, []).append((request.answer, answer))
    for loop, settled in by_loop.items():
        try:
            loop.call_soon_threadsafe(_settle, settled)
        except RuntimeError:  # The loop is closed: nobody waits there any more.
            continue


def _settle(settled: Iterable[tuple[asyncio.Future[SwapResult], SwapResult | StoreUnavailable]]) -> None:
    for future, answer in settled:
        if future.done():  # Its caller was cancelled.
            continue
        if isinstance(answer, StoreUnavailable):
            future.set_exception(answer)
        else:
            future.set_result(answer)


def _open(path: Path, timeout: float) -> sqlite3.Connection:
    try:
        database = sqlite3.connect(path, timeout=timeout, isolation_level=None)
    except sqlite3.Error as error:
        raise UsageError(
            f"the store {path} cannot be opened ({error}): does its folder exist, and may you write there?"
        ) from error
    try:
        _prepare(database, path)
    except sqlite3.Error as error:
        database.close()
        raise UsageError(
            f"the store {path} cannot be used ({error}): name a new file, or one that Warren made"
        ) from error
    except UsageError:
        database.close()
        raise
    return database


def _prepare(database: sqlite3.Connection, path: Path) -> None:
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = FULL")
    database.execute("BEGIN IMMEDIATE")
    (application,) = database.execute("PRAGMA application_id").fetchone()
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if version == 0 and application == 0 and not database.execute("SELECT 1 FROM sqlite_schema").fetchone():
        database.execute(
            "CREATE TABLE records (key TEXT PRIMARY KEY, record BLOB NOT NULL, keep_until REAL NOT NULL) WITHOUT ROWID"
        )
        database.execute("CREATE INDEX records_by_keep_until ON records (keep_until)")
        database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        database.execute(f"PRAGMA user_version = {FORMAT}")
    elif application != APPLICATION_ID:
        raise UsageError(f"{path} is a database, but not one of Warren's stores: name a new file")
    elif version != FORMAT:
        raise UsageError(
            f"the store {path} has format {version}, this Warren knows {FORMAT}: use the Warren that wrote it"
        )
    database.execute("COMMIT")


__all__ = ["SqliteStore"]
