"""`SqliteStore`: records in a SQLite file, for one machine; no package or server is needed."""

from __future__ import annotations

import asyncio
import os
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
from warren.sdk.extend import Duration, seconds

APPLICATION_ID: Final = 0x57415252  # "WARR", so that a foreign database is recognised and left alone
FORMAT: Final = 1
BATCH: Final = 1000
SWEEP_SECONDS: Final = 30.0
SWEEP_ROWS: Final = 5000
LAST_CHARACTER: Final = chr(0x10FFFF)


class SqliteStore:
    """Store in a SQLite database, usable by several processes of one machine (not over a network file system).

    One thread does all the work. Requests that arrive while a transaction is written become the next transaction, so
    many changes share one sync. The database is in WAL mode with `synchronous=FULL`, which syncs at every commit:
    patterns acknowledge a message because of a record, so the record must be on disk before. With `NORMAL` a power
    failure would lose the last commits, although their messages are acknowledged (SQLite documentation, "PRAGMA
    synchronous").

    :param path: the database file; it is created if it is missing, its folder is not.
    :param timeout: seconds to wait while another process writes; after that `StoreUnavailable` is raised. Default 5.
    :raises UsageError: the file cannot be opened, is not a store of Warren's, or has a newer format; or it is `:memory:`.
    """

    def __init__(self, path: str | Path, *, timeout: Duration = 5.0) -> None:
        if not str(path) or str(path) == ":memory:":
            raise UsageError(
                f"SqliteStore needs a file, not {str(path)!r}, whose records each connection would have of its own: use"
                " MemoryStore() in tests"
            )
        self._path = Path(path)
        self._timeout = seconds(timeout, "SqliteStore: timeout", positive=True)
        self._process = os.getpid()
        """The process that the following belong to."""
        self._lock = threading.Lock()
        """Held while a request is passed to the worker, or the worker changes."""
        self._requests: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._worker: threading.Thread | None = None
        # Open and close the file once, so that a wrong path fails at start and not with the first message.
        _open(self._path, self._timeout).close()

    async def compare_and_set(
        self, key: str, expected: bytes | None, record: bytes | None, *, keep_ms: int
    ) -> SwapResult:
        loop = asyncio.get_running_loop()
        request = _Request(key, expected, record, keep_ms, loop, loop.create_future())
        self._leave_parent()
        with self._lock:
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
            # A separate connection: readers and the writer do not wait for each other (SQLite, "Write-Ahead Logging").
            with closing(_open(self._path, self._timeout)) as database:
                # One lower limit only: of two, SQLite may use the first for its search, and read all pages before again.
                comparison, low = (">", after) if after else (">=", prefix)
                return database.execute(
                    f"SELECT key, record FROM records WHERE key {comparison} ? AND key < ? ORDER BY key LIMIT ?",
                    (low, prefix + LAST_CHARACTER, BATCH),
                ).fetchall()
        except (sqlite3.Error, UsageError) as error:
            raise StoreUnavailable(f"the records of {self._path} cannot be read: {error}") from error

    async def close(self) -> None:
        self._leave_parent()
        with self._lock:
            worker, self._worker = self._worker, None
            if worker is None:
                return
            self._requests.put(None)
            # Requests from now on go to the next worker, not to the one that ends.
            self._requests = queue.SimpleQueue()
        await asyncio.to_thread(worker.join)

    def _leave_parent(self) -> None:
        """In a process that was forked, forget the thread of the parent, and the locks that it may have held."""
        if self._process != os.getpid():
            self._process = os.getpid()
            self._lock = threading.Lock()
            self._requests = queue.SimpleQueue()
            self._worker = None

    def _work(self, requests: queue.SimpleQueue[_Request | None]) -> None:
        """Run the worker thread: execute the waiting requests in one transaction and answer them, again and again,
        until a None in `requests` asks it to end."""
        database: sqlite3.Connection | None = None
        swept = 0.0
        ending = False
        while not ending:
            batch, ending = _collect(requests)
            try:
                if database is None:
                    database = _open(self._path, self._timeout)
                database.execute("BEGIN IMMEDIATE")
                now = time.time()
                answers = [_swap(database, request, now) for request in batch]
                # A full sweep is repeated with the next batch, so expired rows cannot accumulate.
                if now - swept > SWEEP_SECONDS and _sweep(database, now) < SWEEP_ROWS:
                    swept = now
                database.execute("COMMIT")
            except (
                Exception
            ) as error:  # Whatever failed, every waiting caller must get an error, and the next be served.
                # Nothing is retried on a connection that failed, because its state is unknown.
                if database is not None:
                    database.close()
                    database = None
                _answer(batch, StoreUnavailable(f"the store {self._path} cannot be written: {error}"))
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


def _collect(requests: queue.SimpleQueue[_Request | None]) -> tuple[list[_Request], bool]:
    """Wait for a request, and return it with those that arrived meanwhile, at most `BATCH`. The second result is True
    if the queue then had a None, which asks the worker thread to end."""
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
    # Bounded, so that no change waits long behind the sweep; the next sweep deletes the rest.
    return database.execute(
        "DELETE FROM records WHERE key IN (SELECT key FROM records WHERE keep_until < ? ORDER BY keep_until LIMIT ?)",
        (now, SWEEP_ROWS),
    ).rowcount


def _answer(batch: list[_Request], answers: list[SwapResult] | StoreUnavailable) -> None:
    """Set the results of a batch on the futures of the waiting tasks, with one `call_soon_threadsafe` per event loop:
    one call per request would take longer than the changes in the database.

    :param answers: one result for each request of the batch, or the error that all of them get.
    """
    by_loop: dict[
        asyncio.AbstractEventLoop, list[tuple[asyncio.Future[SwapResult], SwapResult | StoreUnavailable]]
    ] = {}
    for position, request in enumerate(batch):
        answer = answers if isinstance(answers, StoreUnavailable) else answers[position]
        by_loop.setdefault(request.loop, []).append((request.answer, answer))
    for loop, settled in by_loop.items():
        try:
            loop.call_soon_threadsafe(_settle, settled)
        except RuntimeError:  # The loop is closed, so no caller waits there any more.
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
            f"the store {path} cannot be opened ({error}): check that its folder exists and that you may write there"
        ) from error
    try:
        _prepare(database, path)
    except sqlite3.Error as error:
        database.close()
        raise UsageError(
            f"the store {path} cannot be used ({error}): name a new file, or one that Warren created"
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
    is_new = (
        version == 0 and application == 0 and not database.execute("SELECT 1 FROM sqlite_schema").fetchone()
    )
    if not is_new and application != APPLICATION_ID:
        raise UsageError(f"{path} is a SQLite database, but not a store of Warren's: name a new file")
    if not is_new and version != FORMAT:
        raise UsageError(
            f"the store {path} has format {version}, but this version of Warren reads format {FORMAT}: use the"
            " version that wrote it"
        )
    database.execute(
        "CREATE TABLE IF NOT EXISTS records"
        " (key TEXT PRIMARY KEY, record BLOB NOT NULL, keep_until REAL NOT NULL) WITHOUT ROWID"
    )
    database.execute("CREATE INDEX IF NOT EXISTS records_by_keep_until ON records (keep_until)")
    if is_new:
        database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        database.execute(f"PRAGMA user_version = {FORMAT}")
    database.execute("COMMIT")


__all__ = ["SqliteStore"]
