"""`Files` on the operating system's file system."""

from __future__ import annotations

import os

from warren.broker.store.file_system.spare_descriptors import SpareDescriptors

_spares = SpareDescriptors()
"""Spare descriptors of this process."""
_sync = getattr(os, "fdatasync", os.fsync)
"""Function that syncs a file: fdatasync, or on systems without it fsync, which syncs the file's metadata, too."""


class OsFiles:
    """`Files` that calls the operating system; the one of a broker in production."""

    def __init__(self) -> None:
        _spares.refill()

    def names(self, folder: str) -> list[str]:
        return os.listdir(folder)

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def read(self, path: str, offset: int, size: int) -> bytes:
        with open(path, "rb", buffering=0, opener=_open_briefly) as file:
            file.seek(offset)
            parts = []
            while size > 0 and (part := file.read(size)):
                parts.append(part)
                size -= len(part)
        _spares.refill()
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def open(self, path: str) -> int:
        return _spares.open(path, os.O_RDWR | os.O_CREAT, stays_open=True)

    def write(self, handle: int, data: bytes, offset: int) -> None:
        written = os.pwrite(handle, data, offset)
        if written < len(data):
            rest = memoryview(data)
            while written < len(data):
                written += os.pwrite(handle, rest[written:], offset + written)

    def truncate(self, handle: int, size: int) -> None:
        os.ftruncate(handle, size)

    def sync(self, handle: int) -> None:
        _sync(handle)

    def close(self, handle: int) -> None:
        os.close(handle)
        _spares.refill()

    def unlink(self, path: str) -> None:
        try:
            os.unlink(path)
        except FileNotFoundError:
            return

    def rename(self, path: str, target: str) -> None:
        os.replace(path, target)

    def sync_folder(self, folder: str) -> None:
        handle = _open_briefly(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            self.close(handle)


def _open_briefly(path: str, flags: int) -> int:
    return _spares.open(path, flags, stays_open=False)


__all__ = ["OsFiles"]
