"""`Files` on the operating system's file system."""

from __future__ import annotations

import os
import threading
from contextlib import AbstractContextManager, nullcontext

from warren.broker.store.file_system.spare_descriptors import SpareDescriptors
from warren.core.operating_system.files import FOLDERS_SYNC, REMOVES_OPEN_FILES, sync_file, write_at

_spares = SpareDescriptors()
"""Spare descriptors of this process."""
_no_removal: AbstractContextManager[object] = nullcontext() if REMOVES_OPEN_FILES else threading.Lock()
"""On Windows, where an open file cannot be removed: held while a file is read, and while one is removed or renamed."""


class OsFiles:
    """`Files` that calls the operating system; the one of a broker in production."""

    def __init__(self) -> None:
        _spares.refill()

    def names(self, folder: str) -> list[str]:
        return os.listdir(folder)

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def read(self, path: str, offset: int, size: int) -> bytes:
        with _no_removal:
            handle = _open_briefly(path, os.O_RDONLY)
            try:
                os.lseek(handle, offset, os.SEEK_SET)
                parts = []
                while size > 0 and (part := os.read(handle, size)):
                    parts.append(part)
                    size -= len(part)
            finally:
                _spares.close(handle)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def open(self, path: str) -> int:
        return _spares.open(path, os.O_RDWR | os.O_CREAT, stays_open=True)

    def write(self, handle: int, data: bytes, offset: int) -> None:
        written = write_at(handle, data, offset)
        if written < len(data):
            rest = memoryview(data)
            while written < len(data):
                written += write_at(handle, rest[written:], offset + written)

    def truncate(self, handle: int, size: int) -> None:
        os.ftruncate(handle, size)

    def sync(self, handle: int) -> None:
        sync_file(handle)

    def close(self, handle: int) -> None:
        _spares.close(handle)

    def unlink(self, path: str) -> None:
        try:
            with _no_removal:
                os.unlink(path)
        except FileNotFoundError:
            return

    def rename(self, path: str, target: str) -> None:
        with _no_removal:
            os.replace(path, target)

    def sync_folder(self, folder: str) -> None:
        if not FOLDERS_SYNC:
            return
        handle = _open_briefly(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            self.close(handle)


def _open_briefly(path: str, flags: int) -> int:
    return _spares.open(path, flags, stays_open=False)


__all__ = ["OsFiles"]
