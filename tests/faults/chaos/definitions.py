"""The database of the definitions, as a power cut leaves it, and without room.

SQLite does its own writing and syncing, so a cut is made of what it promises: with `synchronous = FULL` all that was
committed is on the disk when COMMIT returns. A cut between two commits therefore leaves the files as they are. One within a
COMMIT leaves of its writes any sectors: of the write-ahead log as long as that has not been synced, of the database itself
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
NAMES = ("definitions.db", "definitions.db-wal")
Content = dict[str, bytes]


class Mains:
    """What the databases that are opened meanwhile hang on."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.lock = threading.RLock()
        """Held while anything is committed."""
        self.off = False
        self.full = False
        self.commits_left = -1
        """Within which commit from now the power fails; negative if in none."""
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
    """What the cut has left, where it fell within a commit."""

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Databases that are opened within hang on this."""
        connect = sqlite3.connect

        def wired(path: str | Path, **arguments: Any) -> sqlite3.Connection:
            database: Database = connect(path, factory=Database, **arguments)
            database.path, database.mains = Path(path), self
            return database

        with mock.patch("sqlite3.connect", wired):
            yield


class Database(sqlite3.Connection):
    """A connection whose commits can fail with the power."""

    path: Path
    mains: Mains

    def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
        if sql != "COMMIT":
            return super().execute(sql, *arguments)
        cursor = self.cursor()
        self.mains.commit(self.path, lambda: cursor.execute(sql))
        return cursor


def failure(text: str = "disk I/O error", code: int = sqlite3.SQLITE_IOERR) -> sqlite3.OperationalError:
    """What SQLite raises when a write or a sync fails."""
    error = sqlite3.OperationalError(text)
    error.sqlite_errorcode = code
    return error


def content(folder: Path) -> Content:
    """What is in the files now."""
    return {name: (folder / name).read_bytes() for name in NAMES if (folder / name).exists()}


def torn(before: Content, after: Content, random: Random) -> Content:
    """What may be on the disk of a commit that led from one content to the other."""
    if before.get(NAMES[0]) != after.get(NAMES[0]):
        # It was followed by a checkpoint: the log is synced, of the database any sectors are new.
        return {**after, NAMES[0]: mixed(before[NAMES[0]], after[NAMES[0]], random)}
    return {**after, NAMES[1]: mixed(before.get(NAMES[1], b""), after[NAMES[1]], random)}


def mixed(before: bytes, after: bytes, random: Random) -> bytes:
    """The sectors of both, each of one or the other; what is new at the end is there in part, or not."""
    size = random.randint(len(before), len(after)) if len(after) > len(before) else len(before)
    share = random.random()
    made = bytearray(before.ljust(size, b"\0"))
    for at in range(0, size, SECTOR):
        if random.random() < share:
            made[at : at + SECTOR] = after[at : at + SECTOR].ljust(min(SECTOR, size - at), b"\0")
    return bytes(made)


def put(made: Content, folder: Path) -> None:
    """Make the files in the folder those."""
    for name in NAMES:
        (folder / name).unlink(missing_ok=True)
    for name, data in made.items():
        handle = os.open(folder / name, os.O_WRONLY | os.O_CREAT, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
