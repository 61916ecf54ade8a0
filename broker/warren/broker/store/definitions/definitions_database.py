"""Definitions of a data folder: exchanges, queues, bindings, virtual hosts, users, permissions, parameters.

They are rows of an SQLite database. A journal has each change, too, so that they survive damage to the database.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import astuple
from typing import Final, NamedTuple

from warren.broker.store.data_folder import DataFolder
from warren.broker.store.definitions.database_content import snapshot_statements
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
from warren.broker.store.definitions.definitions_journal import is_shortage
from warren.broker.store.definitions.definitions_recovery import (
    DefinitionsLost,
    OpenedDefinitions,
    open_definitions,
)
from warren.broker.store.definitions.generation_mark import write_generation_mark
from warren.broker.store.definitions.row_statements import (
    Statement,
    check_statement,
    exchange_removals,
    load_snapshot,
    put_statement,
    remove_statement,
)
from warren.broker.store.definitions.schema_migrations import VERSION
from warren.broker.store.errors import StoreError, disk_error, reason
from warren.core.errors import ExitStatus

BACKLOG: Final = 200
"""Submitted changes that are not on disk yet, above which those who make many of them wait. They take some 5 ms."""
_RESERVE_SIZE: Final = 1_000_000
"""Number of incarnations (unique numbers of queues) that are reserved on disk at a time.

Those that are not used are skipped after a restart."""
_RETRY: Final = 1.0
"""Seconds between attempts to commit to a full disk."""
_IDLE: Final = 2.0
"""Seconds without a change after which the database takes in its write-ahead log, and the journal is synced."""


class ClaimedQueues(NamedTuple):
    """Queues that have messages, but were not among the definitions."""

    rows: list[QueueRow]
    last_incarnation: int
    """Highest incarnation that the log has, or 0 if it has only known ones."""


Claim = Callable[[Snapshot, int], ClaimedQueues]
"""Function that returns such queues. Its parameters are all definitions, and the first unreserved incarnation."""


class Definitions:
    """The definitions of one data folder: durable exchanges, queues, bindings, users and parameters.

    Changes are numbered as they are submitted. One thread commits them in that order; all that are waiting go into one
    transaction. Methods that submit a change return its number at once. The change is on disk when the attribute
    `committed` has reached this number; a caller replies to its client then.
    """

    def __init__(
        self, folder: DataFolder, opened: OpenedDefinitions, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.submitted = 0
        """Number of the last change that was submitted."""
        self.last_addition = 0
        """Number of the last submitted change that has added a queue or an exchange; messages depend on these."""
        self.committed = 0
        """Number of the last change that is on disk."""
        self.on_committed: Callable[[int], None] = _ignore
        """Callback that gets the number `committed` when it has grown."""
        self.on_failed: Callable[[str], None] = _ignore
        """Callback that gets the reason when the database fails."""
        self._folder = folder
        self._database = database = opened.database
        self._journal = opened.journal
        self._generation = opened.generation
        self._needs_checkpoint = True
        self._loop = loop
        self._watchers: list[Callable[[], None]] = []
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._required_batch = 0
        """Batch of the log that has to be on disk before any further change is."""
        self._written_batch = 0
        """Last batch of the log that is known to be on disk."""
        self._held: deque[tuple[int, tuple[int, list[Statement]]]] = deque()
        """Changes that wait for a batch of the log, in order, each with the number of that batch."""
        self._failed = ""
        self._ended = False
        self._closing: asyncio.Future[None] | None = None
        (first,) = database.execute("SELECT value FROM meta WHERE name = 'next_incarnation'").fetchone()
        self._next_incarnation: int = first
        (seeded,) = database.execute("SELECT value FROM meta WHERE name = 'seeded'").fetchone()
        self.seeded = bool(seeded)
        """True if an earlier start has created the default users."""
        self._reserved_until = self._next_incarnation
        self._requested_until = self._next_incarnation
        self._jobs: queue.SimpleQueue[tuple[int, list[Statement]] | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="warren-definitions", daemon=True)

    @classmethod
    def open(
        cls,
        folder: DataFolder,
        loop: asyncio.AbstractEventLoop,
        accept_data_loss: bool = False,
        claim: Claim | None = None,
    ) -> Definitions:
        """Open database and journal of a folder, or create them, and start the thread.

        A damaged database is restored from the journal, and a damaged journal is written anew from the database.

        :param accept_data_loss: go on with older definitions, or none, if the newest ones are lost.
        :param claim: called before the first change; the queues that it returns are stored with it. What it raises is
            passed on.
        :raises DefinitionsLost: the newest definitions are lost, and this was not accepted. No file was changed.
        :raises StoreError: the definitions are of an unknown version, or cannot be written.
        """
        path = folder.definitions
        try:
            opened = open_definitions(folder, accept_data_loss)
            try:
                definitions = cls(folder, opened, loop)
                stored = load_snapshot(opened.database)
                claimed = ClaimedQueues([], 0)
                if claim is not None:
                    claimed = claim(stored, definitions._next_incarnation)
                known = max((row.incarnation for row in stored.queues), default=0)
                definitions._begin(max(known, claimed.last_incarnation), claimed.rows)
                folder.files.sync_folder(str(folder.path))
                definitions._checkpoint()
            except BaseException:
                opened.journal.close()
                with contextlib.suppress(sqlite3.Error):
                    opened.database.close()
                raise
        except OSError as error:
            raise disk_error(f"use the definitions in {path}", error) from None
        except sqlite3.Error as error:
            status = ExitStatus.IO if isinstance(error, sqlite3.OperationalError) else ExitStatus.USAGE
            raise StoreError(f"cannot use the definitions in {path}: {error}", status) from None
        definitions._thread.start()
        return definitions

    def load(self) -> Snapshot:
        """Return all definitions in the database. Call it before the first change.

        :raises StoreError: the database cannot be read.
        """
        try:
            return load_snapshot(self._database)
        except sqlite3.Error as error:
            text = f"cannot read the definitions in {self._folder.definitions}: {error}"
            raise StoreError(text, ExitStatus.IO) from None

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
        change = self._submit(put_statement(row))
        if isinstance(row, QueueRow | ExchangeRow):
            self.last_addition = change
        return change

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

    def delete_exchanges(self, vhost: bytes, names: Iterable[bytes]) -> int:
        """Remove exchanges, and the bindings from and to them.

        :return: the number of the change: it is on disk once `committed` has reached this number.
        """
        return self._submit(*exchange_removals(vhost, names))

    def delete_queue(self, vhost: bytes, name: bytes, exchanges: Iterable[bytes] = ()) -> int:
        """Remove a queue and the bindings to it.

        :param exchanges: names of exchanges to remove with it, because that takes their last binding.
        :return: the number of the change: it is on disk once `committed` has reached this number.
        """
        return self._submit(
            remove_statement(QueueRow, vhost, name),
            ("DELETE FROM bindings WHERE vhost = ? AND destination = ? AND to_exchange = 0", (vhost, name)),
            *exchange_removals(vhost, exchanges),
        )

    def delete_binding(self, row: BindingRow) -> int:
        """Remove a binding.

        :return: the number of the change: it is on disk once `committed` has reached this number.
        """
        return self._submit(remove_statement(BindingRow, *astuple(row)))

    def require_batch(self, batch: int) -> None:
        """Commit no change that is submitted from now on before a batch of the log is on disk.

        The deletion of a queue must not be on disk before its dead letters are in other queues: after a crash in between
        they would be lost. The log writes batches without waiting for definitions, so neither waits for ever. On a full
        disk the change waits as the log does.

        :param batch: the number of the batch.
        """
        self._required_batch = max(self._required_batch, batch)

    def on_log_written(self, batch: int) -> None:
        """Commit the changes that wait for a batch of the log, because this batch and all before it are on disk."""
        self._written_batch = batch
        while self._held and self._held[0][0] <= batch:
            self._jobs.put(self._held.popleft()[1])

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

    async def catch_up(self) -> None:
        """Wait until all submitted changes are on disk, if more than `BACKLOG` are not.

        Whoever submits thousands of changes calls it from time to time: confirms of messages, and replies to other
        clients' declarations, wait for all changes before them.

        :raises StoreError: the database failed.
        """
        if self.submitted - self.committed > BACKLOG:
            await self.flush()

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
        # Here, where it concerns one client: in the thread it would concern all that comes after it.
        for statement in statements:
            check_statement(statement)
        self.submitted += 1
        job = (self.submitted, list(statements))
        if self._required_batch > self._written_batch:
            self._held.append((self._required_batch, job))
        else:
            self._jobs.put(job)
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
        try:
            while True:
                changes, is_last = self._next_changes()
                if changes:
                    self._commit([statement for _, statements in changes for statement in statements])
                    post(self._on_commit, changes[-1][0], self._reserved_by(changes))
                    self._compact_journal()
                if is_last:
                    # All changes are committed: a failure loses nothing, and the next start repeats it.
                    with contextlib.suppress(sqlite3.Error, OSError):
                        self._checkpoint()
                    break
                if not changes:
                    self._checkpoint()
        except sqlite3.Error as error:
            post(self._on_failure, f"cannot write the definitions: {error}")
        except OSError as error:
            post(self._on_failure, f"cannot write the definitions: {reason(error)}")
        except Exception as error:
            # Unseen, it would leave this change and all later ones waiting for ever.
            post(self._on_failure, f"cannot write the definitions: {type(error).__name__}: {error}")
            raise
        finally:
            with contextlib.suppress(sqlite3.Error):
                self._database.close()
            with contextlib.suppress(OSError):
                self._journal.close()
            post(self._on_thread_end)

    def _next_changes(self) -> tuple[list[tuple[int, list[Statement]]], bool]:
        """Wait for changes, and return all that are waiting; none if the database should be checkpointed now.

        :return: the changes, and True if the thread ends after them.
        """
        changes: list[tuple[int, list[Statement]]] = []
        try:
            job = self._jobs.get(timeout=_IDLE if self._needs_checkpoint else None)
            while job is not None:
                changes.append(job)
                job = self._jobs.get_nowait()
        except queue.Empty:
            return changes, False
        return changes, True

    @staticmethod
    def _reserved_by(changes: list[tuple[int, list[Statement]]]) -> int:
        values = [args[0] for _, statements in changes for sql, args in statements if sql == _RESERVATION]
        return max((value for value in values if isinstance(value, int)), default=0)

    def _commit(self, statements: list[Statement]) -> None:
        while True:
            try:
                self._transaction(statements)
            except (sqlite3.OperationalError, OSError) as error:
                if not _is_full(error) or self._stopping.is_set():
                    raise
                self._stopping.wait(_RETRY)
            else:
                return

    def _transaction(self, statements: list[Statement]) -> None:
        """Commit statements to the database, and append them to the journal; both or none.

        The journal is written first: after a kill in between, it has the change, and the next start completes it.
        """
        execute = self._database.execute
        generation = self._generation + 1
        statements = [*statements, (_NEW_GENERATION, (generation,))]
        execute("BEGIN IMMEDIATE")
        try:
            for sql, arguments in statements:
                execute(sql, arguments)
            self._journal.append(generation, statements)
            execute("COMMIT")
        except (sqlite3.Error, OSError):
            self._journal.discard()
            if self._database.in_transaction:
                execute("ROLLBACK")
            raise
        self._journal.keep()
        self._generation = generation
        self._needs_checkpoint = True

    def _compact_journal(self) -> None:
        """Replace the journal by a snapshot if it has grown large."""
        if not self._journal.is_large:
            return
        try:
            self._journal.replace(self._generation, snapshot_statements(self._database))
        except OSError as error:
            if not is_shortage(error):
                raise
            self._journal.postpone_compaction()

    def _checkpoint(self) -> None:
        """Sync the journal, copy the write-ahead log into the database and empty it, and write the mark for the log.

        Without room on the disk, the next change causes another attempt.
        """
        if not self._needs_checkpoint:
            return
        self._needs_checkpoint = False
        try:
            self._journal.sync()
            self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            write_generation_mark(self._folder, self._generation)
        except (sqlite3.OperationalError, OSError) as error:
            if not _is_full(error):
                raise

    def _begin(self, last: int, claimed: list[QueueRow]) -> None:
        """Store claimed queues and reserve incarnations, in one transaction: later they would pass for deleted ones.

        :param last: highest incarnation that is in use.
        """
        self._next_incarnation = max(self._next_incarnation, last + 1)
        upto = self._next_incarnation + _RESERVE_SIZE
        self._transaction([*map(put_statement, claimed), (_RESERVATION, (upto,))])
        self._reserved_until = self._requested_until = upto


def _is_full(error: Exception) -> bool:
    """Return whether the disk is full, or a file cannot be opened for lack of descriptors."""
    if isinstance(error, sqlite3.Error):
        return bool(error.sqlite_errorcode == sqlite3.SQLITE_FULL)
    return is_shortage(error)


def _ignore(_: object) -> None:
    return


_RESERVATION: Final = "UPDATE meta SET value = ? WHERE name = 'next_incarnation'"
_NEW_GENERATION: Final = "UPDATE meta SET value = ? WHERE name = 'generation'"


__all__ = [
    "VERSION",
    "BindingRow",
    "ClaimedQueues",
    "Definitions",
    "DefinitionsLost",
    "ExchangeRow",
    "QueueRow",
    "Snapshot",
]
