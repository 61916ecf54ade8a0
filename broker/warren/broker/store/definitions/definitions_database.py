"""SQLite database of the definitions: exchanges, queues, bindings, virtual hosts, users, permissions, parameters."""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import astuple
from typing import Final

from warren.broker.store.data_folder import DataFolder
from warren.broker.store.definitions.definition_rows import (
    BindingRow,
    ExchangeRow,
    ParameterRow,
    PermissionRow,
    QueueRow,
    Row,
    Snapshot,
    TopicPermissionRow,
    UserRow,
    VirtualHostRow,
)
from warren.broker.store.definitions.row_statements import (
    Statement,
    load_snapshot,
    put_statement,
    remove_statement,
)
from warren.broker.store.definitions.schema_migrations import VERSION, migrate
from warren.broker.store.errors import StoreError, disk_error
from warren.core.errors import ExitStatus

_RESERVE_SIZE: Final = 1_000_000
"""Number of incarnations (unique numbers of queues) that are reserved on disk at a time.

Those that are not used are skipped after a restart."""
_RETRY: Final = 1.0
"""Seconds between attempts to commit to a full disk."""


class Definitions:
    """The definitions of one data folder: durable exchanges, queues, bindings, users and parameters.

    Changes are numbered as they are submitted. One thread commits them in that order; all that are waiting go into one
    transaction. Methods that submit a change return its number at once. The change is on disk when the attribute
    `committed` has reached this number; a caller replies to its client then.
    """

    def __init__(self, database: sqlite3.Connection, loop: asyncio.AbstractEventLoop) -> None:
        self.submitted = 0
        """Number of the last change that was submitted."""
        self.committed = 0
        """Number of the last change that is on disk."""
        self.on_committed: Callable[[int], None] = _ignore
        """Callback that gets the number `committed` when it has grown."""
        self.on_failed: Callable[[str], None] = _ignore
        """Callback that gets the reason when the database fails."""
        self._database = database
        self._loop = loop
        self._watchers: list[Callable[[], None]] = []
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._failed = ""
        self._ended = False
        self._closing: asyncio.Future[None] | None = None
        (first,) = database.execute("SELECT value FROM meta WHERE name = 'next_incarnation'").fetchone()
        self._next_incarnation: int = first
        self._reserved_until = self._next_incarnation
        self._requested_until = self._next_incarnation
        self._jobs: queue.SimpleQueue[tuple[int, list[Statement]] | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="warren-definitions", daemon=True)

    @classmethod
    def open(cls, folder: DataFolder, loop: asyncio.AbstractEventLoop) -> Definitions:
        """Open the database of a folder, or create it, and start its thread.

        :raises StoreError: the database is missing, damaged, of an unknown version, or cannot be written.
        """
        path = folder.definitions
        if not path.exists() and any(folder.path.glob("log/*.log")):
            raise StoreError(
                f"{path} is missing, but there is a log; restore it or choose another folder with --data-dir"
            )
        database = None
        try:
            # SQLite would create it readable for everybody.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            migrate(database, str(path))
            definitions = cls(database, loop)
            definitions._reserve(definitions._next_incarnation + _RESERVE_SIZE)
            folder.files.sync_folder(str(folder.path))
        except (OSError, sqlite3.Error, StoreError) as error:
            if database is not None:
                with contextlib.suppress(sqlite3.Error):
                    database.close()
            if isinstance(error, StoreError):
                raise
            if isinstance(error, OSError):
                raise disk_error(f"use the definitions in {path}", error) from None
            status = ExitStatus.IO if isinstance(error, sqlite3.OperationalError) else ExitStatus.USAGE
            raise StoreError(f"cannot use the definitions in {path}: {error}", status) from None
        definitions._thread.start()
        return definitions

    def load(self) -> Snapshot:
        """Return all definitions in the database. Call it before the first change."""
        return load_snapshot(self._database)

    def new_incarnation(self) -> int:
        """Return a unique number for a new queue: no other queue of this data folder gets it, even after a crash."""
        incarnation = self._next_incarnation
        if incarnation >= self._reserved_until:
            raise StoreError(
                "the definitions cannot be written as fast as queues are declared", ExitStatus.IO
            )
        self._next_incarnation += 1
        # Half of the reserve is left when the next one is requested: it is committed long before it is needed.
        if self._requested_until - self._next_incarnation < _RESERVE_SIZE // 2:
            self._requested_until += _RESERVE_SIZE
            self._submit((_RESERVATION, (self._requested_until,)))
        return incarnation

    def put(self, row: Row) -> int:
        """Store a row, replacing the one with the same key.

        :return: the number of the change: it is on disk once `committed` has reached this number.
        """
        return self._submit(put_statement(row))

    def remove(self, kind: type[Row], *key: object) -> int:
        """Remove the rows of one table whose first key fields have the values `key`.

        :param kind: the class of the rows, which decides the table.
        :param key: values of the first fields of the key; fewer than it has remove several rows.

        :return: the number of the change: it is on disk once `committed` has reached this number.
        """
        return self._submit(remove_statement(kind, *key))

    def seed(self) -> int:
        """Record that the default users and virtual host were created, so that no later start creates them again.

        :return: the number of the change: it is on disk once `committed` has reached this number.
        """
        return self._submit(("UPDATE meta SET value = 1 WHERE name = 'seeded'", ()))

    @property
    def seeded(self) -> bool:
        """True once the first start has created the default users. Read it before the first change."""
        (value,) = self._database.execute("SELECT value FROM meta WHERE name = 'seeded'").fetchone()
        return bool(value)

    def delete_virtual_host(self, name: str) -> int:
        """Remove a virtual host and all that is in it.

        :return: the number of the change: it is on disk once `committed` has reached this number.
        """
        inside = name.encode()
        return self._submit(
            remove_statement(VirtualHostRow, name),
            ("DELETE FROM permissions WHERE vhost = ?", (name,)),
            ("DELETE FROM topic_permissions WHERE vhost = ?", (name,)),
            *(remove_statement(kind, inside) for kind in (BindingRow, QueueRow, ExchangeRow, ParameterRow)),
        )

    def delete_user(self, name: str) -> int:
        """Remove a user and its permissions.

        :return: the number of the change: it is on disk once `committed` has reached this number.
        """
        return self._submit(
            *(remove_statement(kind, name) for kind in (UserRow, PermissionRow, TopicPermissionRow))
        )

    def delete_exchange(self, vhost: bytes, name: bytes) -> int:
        """Remove an exchange and the bindings from and to it.

        :return: the number of the change: it is on disk once `committed` has reached this number.
        """
        return self._submit(
            remove_statement(ExchangeRow, vhost, name),
            remove_statement(BindingRow, vhost, name),
            ("DELETE FROM bindings WHERE vhost = ? AND destination = ? AND to_exchange = 1", (vhost, name)),
        )

    def delete_queue(self, vhost: bytes, name: bytes) -> int:
        """Remove a queue and the bindings to it.

        :return: the number of the change: it is on disk once `committed` has reached this number.
        """
        return self._submit(
            remove_statement(QueueRow, vhost, name),
            ("DELETE FROM bindings WHERE vhost = ? AND destination = ? AND to_exchange = 0", (vhost, name)),
        )

    def delete_binding(self, row: BindingRow) -> int:
        """Remove a binding.

        :return: the number of the change: it is on disk once `committed` has reached this number.
        """
        return self._submit(remove_statement(BindingRow, *astuple(row)))

    def watch(self, callback: Callable[[], None]) -> None:
        """Call `callback` on the event loop each time `committed` has grown, just before `on_committed` is called."""
        self._watchers.append(callback)

    async def flush(self) -> None:
        """Wait until all submitted changes are on disk.

        :raises StoreError: the database failed.
        """
        if self._failed:
            raise StoreError(self._failed, ExitStatus.IO)
        if self.committed < self.submitted:
            future: asyncio.Future[None] = self._loop.create_future()
            self._waiting.append((self.submitted, future))
            await future

    async def close(self) -> None:
        """Commit all submitted changes, end the thread, and close the database.

        :raises StoreError: some changes could not be committed, and `on_failed` has not been called for it before.
        """
        if self._closing is None:
            failed_before = self._failed
            self._closing = self._loop.create_future()
            if self._ended:
                self._closing.set_result(None)
            self._stopping.set()
            self._jobs.put(None)
            await asyncio.shield(self._closing)
            self._thread.join()
            if self._failed and not failed_before:
                raise StoreError(self._failed, ExitStatus.IO)

    # On the event loop

    def _submit(self, *statements: Statement) -> int:
        self.submitted += 1
        self._jobs.put((self.submitted, list(statements)))
        return self.submitted

    def _on_commit(self, change: int, reserved: int) -> None:
        self.committed = change
        self._reserved_until = max(self._reserved_until, reserved)
        for callback in self._watchers:
            callback()
        self.on_committed(change)
        self._resolve_waiting()

    def _on_failure(self, text: str) -> None:
        self._failed = text
        self.on_failed(text)
        self._resolve_waiting()

    def _resolve_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for change, future in waiting:
            if future.done():
                continue
            if change <= self.committed:
                future.set_result(None)
            elif self._failed:
                future.set_exception(StoreError(self._failed, ExitStatus.IO))
            else:
                self._waiting.append((change, future))

    def _on_thread_end(self) -> None:
        self._ended = True
        if self._closing is not None and not self._closing.done():
            self._closing.set_result(None)

    # In the thread

    def _run(self) -> None:
        post = self._loop.call_soon_threadsafe
        changes: list[tuple[int, list[Statement]]] = []
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
                    post(self._on_commit, changes[-1][0], self._reserved_by(changes))
                    changes = []
                if job is None:
                    break
        except sqlite3.Error as error:
            post(self._on_failure, f"cannot write the definitions: {error}")
        finally:
            with contextlib.suppress(sqlite3.Error):
                self._database.close()
            post(self._on_thread_end)

    @staticmethod
    def _reserved_by(changes: list[tuple[int, list[Statement]]]) -> int:
        values = [args[0] for _, statements in changes for sql, args in statements if sql == _RESERVATION]
        return max((value for value in values if isinstance(value, int)), default=0)

    def _commit(self, statements: list[Statement]) -> None:
        while True:
            try:
                self._transaction(statements)
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_FULL or self._stopping.is_set():
                    raise
                self._stopping.wait(_RETRY)
            else:
                return

    def _transaction(self, statements: list[Statement]) -> None:
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
        self._reserved_until = self._requested_until = upto


def _ignore(_: object) -> None:
    return


_RESERVATION: Final = "UPDATE meta SET value = ? WHERE name = 'next_incarnation'"


__all__ = ["VERSION", "BindingRow", "Definitions", "ExchangeRow", "QueueRow", "Snapshot"]
