"""A simulated disk in memory: it keeps synced data, and loses, tears, refuses or reorders the rest at a test's command."""

from __future__ import annotations

import errno
import os
import threading
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from warren.broker.store.data_folder import VERSION, DataFolder

IDENTITY = 0x1234_5678_9ABC_DEF0
ROOT = Path("/disk")
LOG = "/disk/log"
_SECTOR = 64


@dataclass
class Change:
    """A write of `data` at `offset`, or a truncation to `offset` if `data` is None, that has not been synced."""

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
class FileState:
    """A file: its synced content, its present content, and the changes in between."""

    synced: bytearray = field(default_factory=bytearray)
    content: bytearray = field(default_factory=bytearray)
    unsynced: list[Change] = field(default_factory=list)


class Disk:
    """A `Files` with faults.

    `free_bytes` is how many bytes can still be written (None: any number). `fail_writes` and `fail_syncs` make those calls
    fail. Syncs wait until `syncs_allowed` is set.
    """

    def __init__(self) -> None:
        self.files: dict[str, FileState] = {}
        self.free_bytes: int | None = None
        self.fail_writes = False
        self.fail_syncs = False
        self.syncs = 0
        self.is_dead = False
        self.syncs_allowed = threading.Event()
        self.syncs_allowed.set()
        self._durable: dict[str, FileState] = {}
        self._handles: dict[int, str] = {}
        self._next = 3
        self._lock = threading.RLock()

    def folder(self, stored_version: int = VERSION) -> DataFolder:
        """Return a data folder on this disk, whose format version was found to be `stored_version`."""
        return DataFolder(ROOT, IDENTITY, -1, self, stored_version)

    # Files

    def names(self, folder: str) -> list[str]:
        with self._lock:
            self._check_alive()
            return [os.path.basename(path) for path in self.files if os.path.dirname(path) == folder]

    def size(self, path: str) -> int:
        return len(self._file(path).content)

    def read(self, path: str, offset: int, size: int) -> bytes:
        return bytes(self._file(path).content[offset : offset + size])

    def open(self, path: str) -> int:
        with self._lock:
            self._check_alive()
            if path not in self.files:
                if self.free_bytes == 0:
                    raise _error(errno.ENOSPC)
                self.files[path] = FileState()
            self._next += 1
            self._handles[self._next] = path
            return self._next

    def write(self, handle: int, data: bytes, offset: int) -> None:
        with self._lock:
            node = self._file(self._handles[handle])
            if self.fail_writes:
                raise _error(errno.EIO)
            grows = max(0, offset + len(data) - len(node.content))
            fits = (
                len(data)
                if self.free_bytes is None or grows <= self.free_bytes
                else len(data) - (grows - self.free_bytes)
            )
            change = Change(offset, data[: max(fits, 0)])
            change.apply(node.content)
            node.unsynced.append(change)
            if self.free_bytes is not None:
                self.free_bytes = max(0, self.free_bytes - grows)
            if fits < len(data):
                raise _error(errno.ENOSPC)

    def truncate(self, handle: int, size: int) -> None:
        with self._lock:
            node = self._file(self._handles[handle])
            if self.free_bytes is not None:
                self.free_bytes += len(node.content) - size
            change = Change(size, None)
            change.apply(node.content)
            node.unsynced.append(change)

    def sync(self, handle: int) -> None:
        self.syncs_allowed.wait()
        with self._lock:
            node = self._file(self._handles[handle])
            if self.fail_syncs:
                raise _error(errno.EIO)
            self.syncs += 1
            node.synced = bytearray(node.content)
            node.unsynced = []

    def close(self, handle: int) -> None:
        self._handles.pop(handle)

    def unlink(self, path: str) -> None:
        with self._lock:
            self._check_alive()
            node = self.files.pop(path, None)
            if node is not None and self.free_bytes is not None:
                self.free_bytes += len(node.content)

    def rename(self, path: str, target: str) -> None:
        with self._lock:
            node = self._file(path)
            replaced = self.files.get(target)
            if replaced is not None and self.free_bytes is not None:
                self.free_bytes += len(replaced.content)
            self.files[target] = node
            del self.files[path]

    def sync_folder(self, folder: str) -> None:
        with self._lock:
            self._check_alive()
            if self.fail_syncs:
                raise _error(errno.EIO)
            self._durable = dict(self.files)

    # Faults

    def kill(self) -> Disk:
        """Fail all further calls, as if the process were killed; return the disk for the next process."""
        with self._lock:
            self.is_dead = True
            self.syncs_allowed.set()
            after = Disk()
            copies: dict[int, FileState] = {}
            for path, node in self.files.items():
                copies[id(node)] = after.files[path] = FileState(
                    bytearray(node.synced), bytearray(node.content), list(node.unsynced)
                )
            for path, node in self._durable.items():
                unlinked = FileState(bytearray(node.synced), bytearray(node.synced))
                after._durable[path] = copies.get(id(node), unlinked)
            return after

    def cut_power(self, random: Random) -> Disk:
        """Cut the power; return the disk for the next process.

        Of the changes that were not synced only some reached the disk, the last of them torn or with holes. Names that
        were created, renamed or removed and not synced exist or not.
        """
        with self._lock:
            killed = self.kill()
            after = Disk()
            for path in sorted(killed.files.keys() | killed._durable.keys()):
                was_durable, is_there = path in killed._durable, path in killed.files
                if was_durable != is_there and random.random() < 0.5:
                    is_there = was_durable
                if not is_there:
                    continue
                node = killed.files.get(path) or killed._durable[path]
                replaced = killed._durable.get(path, node)
                if replaced is not node and random.random() < 0.5:
                    # Another file was renamed to it.
                    node = replaced
                content = bytearray(node.synced)
                kept = random.randint(0, len(node.unsynced))
                for change in node.unsynced[:kept]:
                    change.apply(content)
                if kept < len(node.unsynced):
                    torn = node.unsynced[kept]
                    if torn.data:
                        data = torn.data[: random.randint(0, len(torn.data))]
                        if data and random.random() < 0.5:
                            # The size reached the disk, but only some of the bytes: disks write in any order.
                            data = _with_holes(data, random)
                        Change(torn.offset, data).apply(content)
                after.files[path] = FileState(bytearray(content), content)
            after._durable = dict(after.files)
            return after

    def segment(self, number: int) -> FileState:
        return self.files[f"{LOG}/{number:016d}.log"]

    def segments(self) -> list[int]:
        return sorted(int(name[:-4]) for name in self.names(LOG) if name.endswith(".log"))

    def used(self) -> int:
        """Return the bytes of the log's files."""
        with self._lock:
            return sum(len(node.content) for path, node in self.files.items() if path.startswith(LOG))

    def paths(self, beginning: str) -> list[str]:
        """Return the paths of the files that begin with a text, in order, while threads create and remove files."""
        with self._lock:
            return sorted(path for path in self.files if path.startswith(beginning))

    def forget_marks(self) -> Disk:
        """Undo what was written to the marks of synced bytes since they were begun, as a power failure may do."""
        file = self.files["/disk/synced"]
        file.content = bytearray(file.synced)
        file.unsynced = []
        return self

    def _check_alive(self) -> None:
        if self.is_dead:
            raise _error(errno.EIO)

    def _file(self, path: str) -> FileState:
        self._check_alive()
        node = self.files.get(path) or self._durable.get(path)
        if node is None:
            raise _error(errno.ENOENT)
        return node


def _with_holes(data: bytes, random: Random) -> bytes:
    sectors = [data[at : at + _SECTOR] for at in range(0, len(data), _SECTOR)]
    share = random.random()
    return b"".join(bytes(len(sector)) if random.random() < share else sector for sector in sectors)


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))
