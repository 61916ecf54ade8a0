"""A disk in memory that fails, or is full, from one of its calls on, and a short conversation with a broker on it."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from pamqp.commands import Basic, Tx

from tests.faults.chaos.definitions import failure
from tests.support.blocking_client import Channel, Connection
from tests.support.restarts import PERSISTENT
from tests.support.streams import consume
from tests.unit.store.simulated_disk import Disk

WRITES = ("open", "write")
"""The calls that a full disk refuses."""


class FaultyDisk(Disk):
    """Counts its calls. From number `first` on, `times` of those that the fault concerns are refused.

    :param number: of the error; ENOSPC concerns `WRITES` alone, and some of the data is written
    """

    def __init__(self, disk: Disk, number: int = 0, first: int = 0, times: int = 1 << 30) -> None:
        super().__init__()
        self.files, self._durable = disk.files, disk._durable
        self.number = number
        self.first = first
        self.times = times
        self.calls: list[str] = []
        self.refused: list[str] = []

    def _call(self, name: str) -> bool:
        self.calls.append(name)
        if not self.number or len(self.calls) < self.first or len(self.refused) >= self.times:
            return False
        if self.number == errno.ENOSPC and name not in WRITES:
            return False
        self.refused.append(name)
        return True

    def _refuse(self, name: str) -> None:
        if self._call(name):
            raise OSError(self.number, os.strerror(self.number))

    def open(self, path: str) -> int:
        self._refuse("open")
        return super().open(path)

    def write(self, handle: int, data: bytes, offset: int) -> None:
        if self._call("write"):
            super().write(handle, data[: len(data) // 2], offset)
            raise OSError(self.number, os.strerror(self.number))
        super().write(handle, data, offset)

    def truncate(self, handle: int, size: int) -> None:
        self._refuse("truncate")
        super().truncate(handle, size)

    def sync(self, handle: int) -> None:
        self._refuse("sync")
        super().sync(handle)

    def unlink(self, path: str) -> None:
        self._refuse("unlink")
        super().unlink(path)

    def sync_folder(self, folder: str) -> None:
        self._refuse("sync_folder")
        super().sync_folder(folder)


class FaultyDatabase:
    """As `FaultyDisk`, for the commits of the databases that are opened within `with database():`."""

    def __init__(self, code: int = 0, first: int = 0, times: int = 1 << 30) -> None:
        """:param code: SQLite's, of the error that a commit ends with"""
        self.code = code
        self.first = first
        self.times = times
        self.commits = 0
        self.refused = 0

    @contextmanager
    def __call__(self) -> Iterator[None]:
        connect = sqlite3.connect
        faults = self

        class Refusing(sqlite3.Connection):
            def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
                if sql == "COMMIT":
                    faults.commit()
                return super().execute(sql, *arguments)

        def open_database(path: str | Path, **arguments: Any) -> sqlite3.Connection:
            database: sqlite3.Connection = connect(path, factory=Refusing, **arguments)
            return database

        with mock.patch("sqlite3.connect", open_database):
            yield

    def commit(self) -> None:
        self.commits += 1
        if self.code and self.commits >= self.first and self.refused < self.times:
            self.refused += 1
            full = self.code == sqlite3.SQLITE_FULL
            raise failure("database or disk is full" if full else "disk I/O error", self.code)


class Refused(Exception):
    """The broker has refused a publish."""


class Told:
    """What a client was told; a message is a queue and a body."""

    def __init__(self) -> None:
        self.declared: list[str] = []
        self.expected: dict[str, list[bytes]] = {}
        """What has to be there, by queue and in order."""
        self.perhaps: set[tuple[str, bytes]] = set()
        """Acknowledged, and nobody has said that it is safe."""
        self.over: set[tuple[str, bytes]] = set()
        """Acknowledged for good."""
        self.moved: list[bytes] = []
        """Rejected: in `source` or in `grave`."""
        self.commits: list[set[tuple[str, bytes]]] = []
        """What each published: all of it is there, or nothing."""

    def safe(self) -> None:
        """What was acknowledged so far is."""
        self.over |= self.perhaps
        for queue, body in self.perhaps:
            self.expected[queue].remove(body)
        self.perhaps.clear()

    def check(self, found: dict[str, list[bytes]]) -> None:
        """:param found: what is in each queue afterwards"""
        everything = {(queue, body) for queue, bodies in found.items() for body in bodies}
        for queue, expected in self.expected.items():
            due = [body for body in expected if (queue, body) not in self.perhaps]
            assert [body for body in found[queue] if body in due] == due, queue
        assert not self.over & everything
        for commit in self.commits:
            assert commit & everything in (set(), commit)
        for body in self.moved:
            assert (found["source"] + found["grave"]).count(body) == 1


QUEUES: dict[str, dict[str, Any]] = {
    "plain": {},
    "source": {"x_dead_letter_exchange": "", "x_dead_letter_routing_key": "grave"},
    "grave": {},
    "left": {},
    "right": {},
    "stream": {"x_queue_type": "stream"},
}


class Conversation:
    """Publishes, acknowledges, rejects, commits, one step after the answer to the other."""

    def __init__(self, url: str, told: Told) -> None:
        self.told = told
        self.connection = Connection(url)
        self._count = 0
        self._confirms = 0

    def run(self) -> None:
        """
        :raises Refused: the broker has refused a publish.
        :raises Closed: it has closed the connection.
        :raises ConnectionError: it has closed it without a word.
        """
        channel = self.connection.channel()
        self._declare(channel)
        channel.confirm()
        # The first segment of the log is removed, its few live messages are copied.
        self._publish(channel, "grave", 10)
        for size in (9000, 9000, 9000, 9000):
            self._publish(channel, "plain", size)
            self._acknowledge(channel, "plain")
        for queue in ("plain", "source"):
            for size in (10, 10, 3000, 9000):
                self._publish(channel, queue, size)
        self._publish(channel, "", 10, exchange="fan", queues=("left", "right"))
        self._publish(channel, "stream", 10)
        for _ in range(3):
            self._acknowledge(channel, "plain")
        self._reject(channel)
        self._publish(channel, "plain", 3000)
        self._transaction()
        for size in (9000, 9000, 9000):
            self._publish(channel, "right", size)
        for _ in range(4):
            self._acknowledge(channel, "right")
        self._publish(channel, "plain", 10)
        self._publish(channel, "stream", 5000)

    def _declare(self, channel: Channel) -> None:
        channel.declare_exchange("fan", durable=True)
        for queue, arguments in QUEUES.items():
            channel.declare(queue, durable=True, **arguments)
            self.told.declared.append(queue)
        for queue in ("left", "right"):
            channel.bind(queue, "fan")

    def _body(self, size: int) -> bytes:
        self._count += 1
        return b"%d:" % self._count + b"x" * size

    def _publish(
        self, channel: Channel, queue: str, size: int, exchange: str = "", queues: tuple[str, ...] = ()
    ) -> None:
        body = self._body(size)
        channel.publish(queue, body, exchange=exchange, **PERSISTENT)
        self._confirms += 1
        found = channel._next(lambda event: isinstance(event, (Basic.Ack, Basic.Nack)))
        if isinstance(found, Basic.Nack):
            raise Refused
        for name in queues or (queue,):
            self.told.expected.setdefault(name, []).append(body)
        self.told.safe()

    def _acknowledge(self, channel: Channel, queue: str) -> None:
        message = channel.get(queue)
        assert message is not None
        self.told.perhaps.add((queue, message.body))
        channel.ack(message.tag)

    def _reject(self, channel: Channel) -> None:
        message = channel.get("source")
        assert message is not None
        self.told.expected["source"].remove(message.body)
        self.told.moved.append(message.body)
        channel.reject(message.tag)

    def _transaction(self) -> None:
        channel = self.connection.channel()
        channel.call(Tx.Select(), Tx.SelectOk)
        bodies = [self._body(10), self._body(4000)]
        channel.publish("left", bodies[0], **PERSISTENT)
        channel.publish("plain", bodies[1], **PERSISTENT)
        self.told.commits.append({("left", bodies[0]), ("plain", bodies[1])})
        channel.call(Tx.Commit(), Tx.CommitOk)
        self.told.expected["left"].append(bodies[0])
        self.told.expected["plain"].append(bodies[1])

    def end(self) -> None:
        self.connection.abort()


def found(url: str) -> dict[str, list[bytes]]:
    """What is in the queues that are there."""
    bodies: dict[str, list[bytes]] = {}
    with Connection(url) as connection:
        channel = connection.channel()
        for queue in QUEUES:
            if not channel.exists(queue):
                continue
            if queue == "stream":
                count = channel.ready(queue)
                consume(channel, queue, "first")
                bodies[queue] = [message.body for message in channel.deliveries(count)]
            else:
                bodies[queue] = channel.drain(queue)
    return bodies
