"""The definitions of exchanges, queues and bindings, in SQLite, committed by a thread, many at a time."""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import Final

from warren.command import Exit

from .errors import StoreError, reason
from .folder import DataFolder

VERSION: Final = 1
_RESERVE: Final = 1_000_000
"""Incarnations that are set aside at a time; what a process has not used of them is never used."""
_RETRY: Final = 1.0
"""Seconds between attempts to commit to a full disk."""

_SCHEMA: Final = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE exchanges (vhost BLOB NOT NULL, name BLOB NOT NULL, type BLOB NOT NULL,
    auto_delete INTEGER NOT NULL, internal INTEGER NOT NULL, arguments BLOB NOT NULL,
    PRIMARY KEY (vhost, name)) WITHOUT ROWID;
CREATE TABLE queues (vhost BLOB NOT NULL, name BLOB NOT NULL, incarnation INTEGER NOT NULL UNIQUE,
    auto_delete INTEGER NOT NULL, arguments BLOB NOT NULL, PRIMARY KEY (vhost, name)) WITHOUT ROWID;
CREATE TABLE bindings (vhost BLOB NOT NULL, source BLOB NOT NULL, destination BLOB NOT NULL,
    to_exchange INTEGER NOT NULL, routing_key BLOB NOT NULL, arguments BLOB NOT NULL,
    PRIMARY KEY (vhost, source, destination, to_exchange, routing_key, arguments)) WITHOUT ROWID;
CREATE INDEX bindings_by_destination ON bindings (vhost, destination, to_exchange);
INSERT INTO meta VALUES ('version', 1), ('next_incarnation', 1);
"""


@dataclass(frozen=True, slots=True)
class ExchangeRow:
    """A durable exchange. Names are the bytes on the wire, `arguments` those of the AMQP table."""

    vhost: bytes
    name: bytes
    type: bytes
    auto_delete: bool
    internal: bool
    arguments: bytes


@dataclass(frozen=True, slots=True)
class QueueRow:
    """A durable queue that is not exclusive; `incarnation` names its records in the log."""

    vhost: bytes
    name: bytes
    incarnation: int
    auto_delete: bool
    arguments: bytes


@dataclass(frozen=True, slots=True)
class BindingRow:
    """A binding from a durable exchange to a durable queue, or to an exchange if `to_exchange`."""

    vhost: bytes
    source: bytes
    destination: bytes
    to_exchange: bool
    routing_key: bytes
    arguments: bytes


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All definitions at one time, in the order of their names."""

    exchanges: tuple[ExchangeRow, ...]
    queues: tuple[QueueRow, ...]
    bindings: tuple[BindingRow, ...]


_Statement = tuple[str, tuple[object, ...]]

_TABLES: Final = {ExchangeRow: "exchanges", QueueRow: "queues", BindingRow: "bindings"}


class Definitions:
    """The definitions of one data folder.

    Changes are numbered as they are submitted and committed in that order by one thread, as many at a time as
    wait. A change is on the disk once `committed` has reached its number.
    """

    def __init__(self, database: sqlite3.Connection, loop: asyncio.AbstractEventLoop) -> None:
        self.submitted = 0
        """Number of the last change that was submitted."""
        self.committed = 0
        """Number of the last change that is on the disk."""
        self.on_committed: Callable[[int], None] = _ignore
        self.on_failed: Callable[[str], None] = _ignore
        self._database = database
        self._loop = loop
        self._watchers: list[Callable[[], None]] = []
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._failed = ""
        self._ended = False
        self._closing: asyncio.Future[None] | None = None
        (first,) = database.execute("SELECT value FROM meta WHERE name = 'next_incarnation'").fetchone()
        self._next: int = first
        self._reserved = self._next
        self._promised = self._next
        self._jobs: queue.SimpleQueue[tuple[int, list[_Statement]] | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="warren-definitions", daemon=True)

    @classmethod
    def open(cls, folder: DataFolder, loop: asyncio.AbstractEventLoop) -> Definitions:
        """Open the database of a folder, or make it, and start the worker.

        :raises StoreError: the database is missing, damaged, of an unknown version, or cannot be written.
        """
        path = folder.definitions
        if not path.exists() and any(folder.path.glob("log/*.log")):
            raise StoreError(f"{path} is missing, but there is a log: restore it or name another data folder")
        database = None
        try:
            # SQLite would make it readable for everybody.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            _prepare(database, str(path))
            definitions = cls(database, loop)
            definitions._reserve(definitions._next + _RESERVE)
            folder.files.sync_folder(str(folder.path))
        except OSError as error:
            raise StoreError(f"cannot use the definitions in {path}: {reason(error)}") from None
        except (sqlite3.Error, StoreError) as error:
            if database is not None:
                with contextlib.suppress(sqlite3.Error):
                    database.close()
            if isinstance(error, StoreError):
                raise
            status = Exit.IO if isinstance(error, sqlite3.OperationalError) else Exit.USAGE
            raise StoreError(f"cannot use the definitions in {path}: {error}", status) from None
        definitions._thread.start()
        return definitions

    def load(self) -> Snapshot:
        """All definitions. To be called before the first change."""
        rows = self._database.execute
        return Snapshot(
            tuple(
                ExchangeRow(vhost, name, kind, bool(auto_delete), bool(internal), arguments)
                for vhost, name, kind, auto_delete, internal, arguments in rows(
                    "SELECT vhost, name, type, auto_delete, internal, arguments FROM exchanges"
                    " ORDER BY vhost, name"
                )
            ),
            tuple(
                QueueRow(vhost, name, incarnation, bool(auto_delete), arguments)
                for vhost, name, incarnation, auto_delete, arguments in rows(
                    "SELECT vhost, name, incarnation, auto_delete, arguments FROM queues ORDER BY vhost, name"
                )
            ),
            tuple(
                BindingRow(vhost, source, destination, bool(to_exchange), key, arguments)
                for vhost, source, destination, to_exchange, key, arguments in rows(
                    "SELECT vhost, source, destination, to_exchange, routing_key, arguments FROM bindings"
                    " ORDER BY vhost, source, destination, to_exchange, routing_key, arguments"
                )
            ),
        )

    def new_incarnation(self) -> int:
        """A number for a queue that no queue of this folder has had or will have, crashes included."""
        incarnation = self._next
        if incarnation >= self._reserved:
            raise StoreError("the definitions cannot be written as fast as queues are made", Exit.IO)
        self._next += 1
        # Half of the reserve is left when the next one is asked for: it is committed long before it is
        # needed.
        if self._promised - self._next < _RESERVE // 2:
            self._promised += _RESERVE
            self._submit((_RESERVATION, (self._promised,)))
        return incarnation

    def put_exchange(self, row: ExchangeRow) -> int:
        """Store an exchange; returns the change's number."""
        return self._submit(_put(row))

    def put_queue(self, row: QueueRow) -> int:
        """Store a queue; returns the change's number."""
        return self._submit(_put(row))

    def put_binding(self, row: BindingRow) -> int:
        """Store a binding; returns the change's number."""
        return self._submit(_put(row))

    def delete_exchange(self, vhost: bytes, name: bytes) -> int:
        """Remove an exchange and the bindings from and to it; returns the change's number."""
        return self._submit(
            ("DELETE FROM exchanges WHERE vhost = ? AND name = ?", (vhost, name)),
            ("DELETE FROM bindings WHERE vhost = ? AND source = ?", (vhost, name)),
            ("DELETE FROM bindings WHERE vhost = ? AND destination = ? AND to_exchange = 1", (vhost, name)),
        )

    def delete_queue(self, vhost: bytes, name: bytes) -> int:
        """Remove a queue and the bindings to it; returns the change's number."""
        return self._submit(
            ("DELETE FROM queues WHERE vhost = ? AND name = ?", (vhost, name)),
            ("DELETE FROM bindings WHERE vhost = ? AND destination = ? AND to_exchange = 0", (vhost, name)),
        )

    def delete_binding(self, row: BindingRow) -> int:
        """Remove a binding; returns the change's number."""
        return self._submit(
            (
                "DELETE FROM bindings WHERE vhost = ? AND source = ? AND destination = ? AND to_exchange = ?"
                " AND routing_key = ? AND arguments = ?",
                astuple(row),
            )
        )

    def watch(self, callback: Callable[[], None]) -> None:
        """Have `callback` called on the loop whenever `committed` has grown, before `on_committed`."""
        self._watchers.append(callback)

    async def flush(self) -> None:
        """Return once every change that was submitted is on the disk.

        :raises StoreError: the database failed.
        """
        if self._failed:
            raise StoreError(self._failed, Exit.IO)
        if self.committed < self.submitted:
            future: asyncio.Future[None] = self._loop.create_future()
            self._waiting.append((self.submitted, future))
            await future

    async def close(self) -> None:
        """Commit what was submitted, end the worker, close the database.

        :raises StoreError: not all of it could be committed, and `on_failed` had not told of that before.
        """
        if self._closing is None:
            told = self._failed
            self._closing = self._loop.create_future()
            if self._ended:
                self._closing.set_result(None)
            self._stopping.set()
            self._jobs.put(None)
            await asyncio.shield(self._closing)
            self._thread.join()
            if self._failed and not told:
                raise StoreError(self._failed, Exit.IO)

    # On the loop

    def _submit(self, *statements: _Statement) -> int:
        self.submitted += 1
        self._jobs.put((self.submitted, list(statements)))
        return self.submitted

    def _done(self, change: int, reserved: int) -> None:
        self.committed = change
        self._reserved = max(self._reserved, reserved)
        for callback in self._watchers:
            callback()
        self.on_committed(change)
        self._wake()

    def _fail(self, text: str) -> None:
        self._failed = text
        self.on_failed(text)
        self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for change, future in waiting:
            if future.done():
                continue
            if change <= self.committed:
                future.set_result(None)
            elif self._failed:
                future.set_exception(StoreError(self._failed, Exit.IO))
            else:
                self._waiting.append((change, future))

    def _end(self) -> None:
        self._ended = True
        if self._closing is not None and not self._closing.done():
            self._closing.set_result(None)

    # In the worker

    def _run(self) -> None:
        post = self._loop.call_soon_threadsafe
        changes: list[tuple[int, list[_Statement]]] = []
        try:
            while True:
                job = self._jobs.get()
                while job is not None:
                    changes.append(job)
                    if self._jobs.empty():
                        break
                    job = self._jobs.get()
                if changes:
                    self._commit([statement for _, statements in changes for statement in statements])
                    post(self._done, changes[-1][0], self._reserved_by(changes))
                    changes = []
                if job is None:
                    break
        except sqlite3.Error as error:
            post(self._fail, f"cannot write the definitions: {error}")
        finally:
            with contextlib.suppress(sqlite3.Error):
                self._database.close()
            post(self._end)

    @staticmethod
    def _reserved_by(changes: list[tuple[int, list[_Statement]]]) -> int:
        values = [args[0] for _, statements in changes for sql, args in statements if sql == _RESERVATION]
        return max((value for value in values if isinstance(value, int)), default=0)

    def _commit(self, statements: list[_Statement]) -> None:
        while True:
            try:
                self._transaction(statements)
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_FULL or self._stopping.is_set():
                    raise
                self._stopping.wait(_RETRY)
            else:
                return

    def _transaction(self, statements: list[_Statement]) -> None:
        execute = self._database.execute
        execute("BEGIN IMMEDIATE")
        try:
            for sql, arguments in statements:
                execute(sql, arguments)
            execute("COMMIT")
        except sqlite3.Error:
            if self._database.in_transaction:
                execute("ROLLBACK")
            raise

    def _reserve(self, upto: int) -> None:
        self._transaction([(_RESERVATION, (upto,))])
        self._reserved = self._promised = upto


def _ignore(_: object) -> None:
    return


_RESERVATION: Final = "UPDATE meta SET value = ? WHERE name = 'next_incarnation'"


def _put(row: ExchangeRow | QueueRow | BindingRow) -> _Statement:
    values = astuple(row)
    marks = ", ".join("?" * len(values))
    return f"INSERT OR REPLACE INTO {_TABLES[type(row)]} VALUES ({marks})", values


def _prepare(database: sqlite3.Connection, path: str) -> None:
    """Set the database up, make its tables if it has none, check its version."""
    database.execute("PRAGMA locking_mode = EXCLUSIVE")
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = FULL")
    if not database.execute("SELECT 1 FROM sqlite_master").fetchone():
        database.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} COMMIT;")
    row = database.execute("SELECT value FROM meta WHERE name = 'version'").fetchone()
    if row is None or row[0] != VERSION:
        found = row[0] if row else "none"
        raise StoreError(
            f"{path} has version {found}, this broker knows {VERSION}: "
            "start it with the version of Warren that wrote it"
        )


__all__ = ["BindingRow", "Definitions", "ExchangeRow", "QueueRow", "Snapshot"]
