"""A disk and a database that fail from one of their calls on, and a short client session with a broker on them."""

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

from tests.faults.chaos.database_faults import failure
from tests.support.blocking_client import Channel, Connection
from tests.support.restarts import PERSISTENT
from tests.support.streams import consume
from tests.unit.store.simulated_disk import Disk

WRITES = ("open", "write")
"""Calls that a full disk refuses."""


class FaultyDisk(Disk):
    """A simulated disk that counts its calls and refuses some of them.

    :param number: error number; 0 for no fault. With ENOSPC only `WRITES` are refused, after half of the data is written.
    :param first: number of the first call that may be refused.
    :param times: number of calls that are refused.
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

    def rename(self, path: str, target: str) -> None:
        self._refuse("rename")
        super().rename(path, target)

    def sync_folder(self, folder: str) -> None:
        self._refuse("sync_folder")
        super().sync_folder(folder)


class FaultyDatabase:
    """Refuses some of the commits of the databases that are opened within `with database():`."""

    def __init__(self, code: int = 0, first: int = 0, times: int = 1 << 30) -> None:
        """:param code: SQLite's error code of refused commits; 0 for no fault.
        :param first: number of the first commit that is refused.
        :param times: number of commits that are refused.
        """
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
        """Count a commit; raise the error if it is refused."""
        self.commits += 1
        if self.code and self.commits >= self.first and self.refused < self.times:
            self.refused += 1
            full = self.code == sqlite3.SQLITE_FULL
            raise failure("database or disk is full" if full else "disk I/O error", self.code)


class Refused(Exception):
    """The broker refused a publish with basic.nack."""


class ExpectedState:
    """The state that a client may expect from the broker's replies. A message is a queue and a body."""

    def __init__(self) -> None:
        self.declared: list[str] = []
        self.expected: dict[str, list[bytes]] = {}
        """Messages that must exist, by queue, in order."""
        self.uncertain: set[tuple[str, bytes]] = set()
        """Messages whose acknowledgement may not be on disk yet."""
        self.ended: set[tuple[str, bytes]] = set()
        """Messages whose acknowledgement is on disk."""
        self.rejected: list[bytes] = []
        """Rejected messages, which are in `source` or in `dead-letters`."""
        self.commits: list[set[tuple[str, bytes]]] = []
        """The messages that each transaction published: all of them exist, or none."""

    def mark_durable(self) -> None:
        """Note that all acknowledgements so far are on disk."""
        self.ended |= self.uncertain
        for queue, body in self.uncertain:
            self.expected[queue].remove(body)
        self.uncertain.clear()

    def check(self, found: dict[str, list[bytes]]) -> None:
        """Check the messages that a later broker holds.

        :param found: the messages of each queue.
        """
        everything = {(queue, body) for queue, bodies in found.items() for body in bodies}
        for queue, expected in self.expected.items():
            due = [body for body in expected if (queue, body) not in self.uncertain]
            assert [body for body in found[queue] if body in due] == due, queue
        assert not self.ended & everything
        for commit in self.commits:
            assert commit & everything in (set(), commit)
        for body in self.rejected:
            assert (found["source"] + found["dead-letters"]).count(body) == 1


QUEUES: dict[str, dict[str, Any]] = {
    "plain": {},
    "source": {"x_dead_letter_exchange": "", "x_dead_letter_routing_key": "dead-letters"},
    "dead-letters": {},
    "left": {},
    "right": {},
    "stream": {"x_queue_type": "stream"},
}


class ClientSession:
    """A client that publishes, acknowledges, rejects and commits; it waits for each reply."""

    def __init__(self, url: str, expected_state: ExpectedState) -> None:
        self.expected_state = expected_state
        self.connection = Connection(url)
        self._count = 0
        self._confirms = 0

    def run(self) -> None:
        """Run the session.

        :raises Refused: the broker refused a publish.
        :raises Closed: it closed the connection.
        :raises ConnectionError: it ended the connection without connection.close.
        """
        channel = self.connection.channel()
        self._declare(channel)
        channel.confirm()
        # The first segment of the log is compacted and deleted.
        self._publish(channel, "dead-letters", 10)
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
            self.expected_state.declared.append(queue)
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
            self.expected_state.expected.setdefault(name, []).append(body)
        self.expected_state.mark_durable()

    def _acknowledge(self, channel: Channel, queue: str) -> None:
        message = channel.get(queue)
        assert message is not None
        self.expected_state.uncertain.add((queue, message.body))
        channel.ack(message.tag)

    def _reject(self, channel: Channel) -> None:
        message = channel.get("source")
        assert message is not None
        self.expected_state.expected["source"].remove(message.body)
        self.expected_state.rejected.append(message.body)
        channel.reject(message.tag)

    def _transaction(self) -> None:
        channel = self.connection.channel()
        channel.call(Tx.Select(), Tx.SelectOk)
        bodies = [self._body(10), self._body(4000)]
        channel.publish("left", bodies[0], **PERSISTENT)
        channel.publish("plain", bodies[1], **PERSISTENT)
        self.expected_state.commits.append({("left", bodies[0]), ("plain", bodies[1])})
        channel.call(Tx.Commit(), Tx.CommitOk)
        self.expected_state.expected["left"].append(bodies[0])
        self.expected_state.expected["plain"].append(bodies[1])

    def end(self) -> None:
        """End the connection at once."""
        self.connection.abort()


def found(url: str) -> dict[str, list[bytes]]:
    """Return the messages of the queues that exist."""
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
