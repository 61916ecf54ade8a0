"""Files: reading and writing at a position, syncing, and locks."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from warren.core.operating_system.portable_switch import offered, present

Data: TypeAlias = bytes | bytearray | memoryview

BINARY: Final[int] = getattr(os, "O_BINARY", 0)
"""Flag of os.open for files of bytes. Windows would translate line ends without it."""
FOLDERS_SYNC: Final[bool] = present("os", "O_DIRECTORY") is not None
"""True if a folder can be opened and synced. Windows cannot; its file system keeps a journal of names."""
REMOVES_OPEN_FILES: Final = sys.platform != "win32"
"""True if a file can be removed or renamed while it is open."""
LOCKED_BYTE: Final = 1 << 30
"""Position of the byte that is locked on Windows, where nobody else can read a locked byte."""

_position = threading.Lock()
_full_sync: Final[int | None] = present("fcntl", "F_FULLFSYNC")
_fcntl: Final[Callable[..., object] | None] = present("fcntl", "fcntl")
_flock: Final[Callable[[int, int], None] | None] = present("fcntl", "flock")
_locking: Final[Callable[[int, int, int], None] | None] = present("msvcrt", "locking")


def _seek_and_read(handle: int, size: int, offset: int, /) -> bytes:
    with _position:
        os.lseek(handle, offset, os.SEEK_SET)
        return os.read(handle, size)


def _seek_and_write(handle: int, data: Data, offset: int, /) -> int:
    with _position:
        os.lseek(handle, offset, os.SEEK_SET)
        return os.write(handle, data)


def _sync_all(handle: int) -> None:
    """Sync file and metadata; on macOS, where fsync leaves both in the cache of the disk, with F_FULLFSYNC."""
    if _full_sync is not None and _fcntl is not None:
        try:
            _fcntl(handle, _full_sync)
        except OSError:
            # A network file system, for example, refuses it.
            os.fsync(handle)
    else:
        os.fsync(handle)


read_at: Final[Callable[[int, int, int], bytes]] = offered("os", "pread") or _seek_and_read
"""Function of a handle, a size and an offset in bytes: read up to that size, and return it."""
write_at: Final[Callable[[int, Data, int], int]] = offered("os", "pwrite") or _seek_and_write
"""Function of a handle, data and an offset in bytes: write as much as the system takes, and return how much."""
sync_file: Final[Callable[[int], None]] = offered("os", "fdatasync") or _sync_all
"""Function of a handle: return when everything that was written to the file is on disk."""


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Return when the names of all created, renamed and removed files of a folder are on disk.

    No effect where folders cannot be synced (FOLDERS_SYNC).
    """
    if FOLDERS_SYNC:
        handle = os.open(folder, os.O_RDONLY)
        try:
            _sync_all(handle)
        finally:
            os.close(handle)


def lock_file(handle: int) -> bool:
    """Lock an open file for this process until the handle is closed; return False if another one holds the lock.

    :raises OSError: the file system has no locks.
    """
    if _flock is not None:
        try:
            _flock(handle, _flag("LOCK_EX") | _flag("LOCK_NB"))
        except BlockingIOError:
            return False
        return True
    assert _locking is not None
    os.lseek(handle, LOCKED_BYTE, os.SEEK_SET)
    try:
        _locking(handle, present("msvcrt", "LK_NBLCK"), 1)
    except PermissionError:
        return False
    return True


def _flag(name: str) -> int:
    value: Any = present("fcntl", name)
    return int(value)


__all__ = [
    "BINARY",
    "FOLDERS_SYNC",
    "REMOVES_OPEN_FILES",
    "lock_file",
    "read_at",
    "sync_file",
    "sync_folder",
    "write_at",
]
