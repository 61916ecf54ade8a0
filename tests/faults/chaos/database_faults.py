"""Fault injection for the definitions database: power cuts and full disks.

SQLite writes and syncs its files itself, so a power cut is simulated from its guarantees: with `synchronous = FULL` a
transaction is on disk when COMMIT returns. A cut between two commits therefore leaves the files as they are. A cut within a
COMMIT leaves any of the written sectors: of the write-ahead log as long as it has not been synced, of the database itself
only afterwards, because SQLite syncs the log before it copies from it.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

SECTOR = 512
CHECKPOINT = "PRAGMA wal_checkpoint(TRUNCATE)"
NAMES = ("definitions.db", "definitions.db-wal")
Content = dict[str, bytes]


class DatabasePower:
    """The simulated power supply and disk space of databases."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.lock = threading.RLock()
        """Held during each commit and each close."""
        self.off = False
        self.full = False
        self.commits_left = -1
        """Number of commits from now until the one in which the power fails; negative for never."""
        self.on_cut: Callable[[], None] = lambda: None

    def commit(self, path: Path, commit: Callable[[], object]) -> None:
        with self.lock:
            self.commits_left -= 1
            if self.off:
                raise failure()
            if self.full:
                raise failure("database or disk is full", sqlite3.SQLITE_FULL)
            if self.commits_left != 0:
                commit()
                return
            before = content(path.parent)
            commit()
            self.torn = torn(before, content(path.parent), self.random)
            self.on_cut()
            raise failure()

    torn: Content | None = None
    """Content of the files after a cut within a commit; None if there was none."""

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Apply the faults to databases that are opened within the context."""
        connect = sqlite3.connect

        def wired(path: str | Path, **arguments: Any) -> sqlite3.Connection:
            database: Database = connect(path, factory=Database, **arguments)
            database.path, database.power = Path(path), self
            return database

        with mock.patch("sqlite3.connect", wired):
            yield


class Database(sqlite3.Connection):
    """A connection whose commits fail on a power cut or a full disk."""

    path: Path
    power: DatabasePower

    def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
        if sql not in ("COMMIT", CHECKPOINT):
            return super().execute(sql, *arguments)
        cursor = self.cursor()
        self.power.commit(self.path, lambda: cursor.execute(sql))
        return cursor

    def close(self) -> None:
        # It copies the write-ahead log and removes it: a cut must not take the old database without that log.
        with self.power.lock:
            super().close()


def failure(text: str = "disk I/O error", code: int = sqlite3.SQLITE_IOERR) -> sqlite3.OperationalError:
    """Return the error that SQLite raises when a write or a sync fails."""
    error = sqlite3.OperationalError(text)
    error.sqlite_errorcode = code
    return error


def content(folder: Path) -> Content:
    """Return the present content of the files."""
    return {name: (folder / name).read_bytes() for name in NAMES if (folder / name).exists()}


def torn(before: Content, after: Content, random: Random) -> Content:
    """Return a content that a power cut may leave of a commit that led from `before` to `after`."""
    if before.get(NAMES[0]) != after.get(NAMES[0]):
        # A checkpoint, or one that followed: the log is synced, and any sectors of the database are new.
        log = after.get(NAMES[1]) or before.get(NAMES[1], b"")
        return {NAMES[1]: log, NAMES[0]: mixed(before[NAMES[0]], after[NAMES[0]], random)}
    return {**after, NAMES[1]: mixed(before.get(NAMES[1], b""), after[NAMES[1]], random)}


def mixed(before: bytes, after: bytes, random: Random) -> bytes:
    """Return a mix of the sectors of both; a new end is present, missing or cut short."""
    size = random.randint(len(before), len(after)) if len(after) > len(before) else len(before)
    share = random.random()
    made = bytearray(before.ljust(size, b"\0"))
    for at in range(0, size, SECTOR):
        if random.random() < share:
            made[at : at + SECTOR] = after[at : at + SECTOR].ljust(min(SECTOR, size - at), b"\0")
    return bytes(made)


def put(made: Content, folder: Path) -> None:
    """Replace the files in the folder by this content."""
    for name in NAMES:
        (folder / name).unlink(missing_ok=True)
    for name, data in made.items():
        handle = os.open(folder / name, os.O_WRONLY | os.O_CREAT, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
