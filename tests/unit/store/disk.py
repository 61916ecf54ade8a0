"""A disk in memory that keeps what was synced and loses, tears, refuses or reorders the rest as a test
says."""

from __future__ import annotations

import errno
import os
import threading
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from warren.broker.store.data_folder import DataFolder

IDENTITY = 0x1234_5678_9ABC_DEF0
ROOT = Path("/disk")
LOG = "/disk/log"
_SECTOR = 64


@dataclass
class Change:
    """A write of `data` at `offset`, or a truncation to `offset`, that has not been synced."""

    offset: int
    data: bytes | None

    def apply(self, content: bytearray) -> None:
        if self.data is None:
            del content[self.offset :]
            return
        if len(content) < self.offset:
            content.extend(bytes(self.offset - len(content)))
        content[self.offset : self.offset + len(self.data)] = self.data


@dataclass
class Node:
    """A file: what is on the disk, and what has been written since."""

    synced: bytearray = field(default_factory=bytearray)
    content: bytearray = field(default_factory=bytearray)
    unsynced: list[Change] = field(default_factory=list)


class Disk:
    """Implements `Files`.

    `room` is how many bytes can still be written (None: any number). `fail_writes` and `fail_syncs` make
    those calls fail. `delays` names calls that wait until the event of that name is set.
    """

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.room: int | None = None
        self.fail_writes = False
        self.fail_syncs = False
        self.syncs = 0
        self.off = False
        self.go_on = threading.Event()
        self.go_on.set()
        self._durable: dict[str, Node] = {}
        self._handles: dict[int, str] = {}
        self._next = 3
        self._lock = threading.RLock()

    def folder(self) -> DataFolder:
        """A data folder on this disk."""
        return DataFolder(ROOT, IDENTITY, -1, self)

    # Files

    def names(self, folder: str) -> list[str]:
        with self._lock:
            self._alive()
            return [os.path.basename(path) for path in self.nodes if os.path.dirname(path) == folder]

    def size(self, path: str) -> int:
        return len(self._node(path).content)

    def read(self, path: str, offset: int, size: int) -> bytes:
        return bytes(self._node(path).content[offset : offset + size])

    def open(self, path: str) -> int:
        with self._lock:
            self._alive()
            if path not in self.nodes:
                if self.room == 0:
                    raise _error(errno.ENOSPC)
                self.nodes[path] = Node()
            self._next += 1
            self._handles[self._next] = path
            return self._next

    def write(self, handle: int, data: bytes, offset: int) -> None:
        with self._lock:
            node = self._node(self._handles[handle])
            if self.fail_writes:
                raise _error(errno.EIO)
            grows = max(0, offset + len(data) - len(node.content))
            fits = len(data) if self.room is None or grows <= self.room else len(data) - (grows - self.room)
            change = Change(offset, data[: max(fits, 0)])
            change.apply(node.content)
            node.unsynced.append(change)
            if self.room is not None:
                self.room = max(0, self.room - grows)
            if fits < len(data):
                raise _error(errno.ENOSPC)

    def truncate(self, handle: int, size: int) -> None:
        with self._lock:
            node = self._node(self._handles[handle])
            if self.room is not None:
                self.room += len(node.content) - size
            change = Change(size, None)
            change.apply(node.content)
            node.unsynced.append(change)

    def sync(self, handle: int) -> None:
        self.go_on.wait()
        with self._lock:
            node = self._node(self._handles[handle])
            if self.fail_syncs:
                raise _error(errno.EIO)
            self.syncs += 1
            node.synced = bytearray(node.content)
            node.unsynced = []

    def close(self, handle: int) -> None:
        self._handles.pop(handle)

    def unlink(self, path: str) -> None:
        with self._lock:
            self._alive()
            node = self.nodes.pop(path, None)
            if node is not None and self.room is not None:
                self.room += len(node.content)

    def sync_folder(self, folder: str) -> None:
        with self._lock:
            self._alive()
            if self.fail_syncs:
                raise _error(errno.EIO)
            self._durable = dict(self.nodes)

    # Faults

    def kill(self) -> Disk:
        """The process is gone: no call does anything any more. Returns the disk as the next process finds
        it."""
        with self._lock:
            self.off = True
            self.go_on.set()
            after = Disk()
            for path, node in self.nodes.items():
                after.nodes[path] = Node(bytearray(node.synced), bytearray(node.content), list(node.unsynced))
            after._durable = {
                path: after.nodes.get(path, Node(bytearray(node.synced), bytearray(node.synced)))
                for path, node in self._durable.items()
            }
            return after

    def cut_power(self, random: Random) -> Disk:
        """As `kill`, but of what was not synced only some reached the disk, the last of it torn or with
        holes; names that were made or removed and not synced are there or not."""
        with self._lock:
            killed = self.kill()
            after = Disk()
            for path in sorted(killed.nodes.keys() | killed._durable.keys()):
                was_durable, is_there = path in killed._durable, path in killed.nodes
                if was_durable != is_there and random.random() < 0.5:
                    is_there = was_durable
                if not is_there:
                    continue
                node = killed.nodes.get(path) or killed._durable[path]
                content = bytearray(node.synced)
                kept = random.randint(0, len(node.unsynced))
                for change in node.unsynced[:kept]:
                    change.apply(content)
                if kept < len(node.unsynced):
                    torn = node.unsynced[kept]
                    if torn.data:
                        data = torn.data[: random.randint(0, len(torn.data))]
                        if data and random.random() < 0.5:
                            # The size reached the disk, of the bytes only some: disks write in any order.
                            data = _with_holes(data, random)
                        Change(torn.offset, data).apply(content)
                after.nodes[path] = Node(bytearray(content), content)
            after._durable = dict(after.nodes)
            return after

    def segment(self, number: int) -> Node:
        return self.nodes[f"{LOG}/{number:016d}.log"]

    def segments(self) -> list[int]:
        return sorted(int(name[:-4]) for name in self.names(LOG) if name.endswith(".log"))

    def used(self) -> int:
        return sum(len(node.content) for node in self.nodes.values())

    def _alive(self) -> None:
        if self.off:
            raise _error(errno.EIO)

    def _node(self, path: str) -> Node:
        self._alive()
        node = self.nodes.get(path) or self._durable.get(path)
        if node is None:
            raise _error(errno.ENOENT)
        return node


def _with_holes(data: bytes, random: Random) -> bytes:
    sectors = [data[at : at + _SECTOR] for at in range(0, len(data), _SECTOR)]
    share = random.random()
    return b"".join(bytes(len(sector)) if random.random() < share else sector for sector in sectors)


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))
