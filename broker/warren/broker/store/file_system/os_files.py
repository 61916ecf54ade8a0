"""`Files` on the operating system's file system."""

from __future__ import annotations

import os

_sync = getattr(os, "fdatasync", os.fsync)
"""Function that syncs a file: fdatasync, or on systems without it fsync, which syncs the file's metadata, too."""


class OsFiles:
    """`Files` that calls the operating system; the one of a broker in production."""

    def names(self, folder: str) -> list[str]:
        return os.listdir(folder)

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def read(self, path: str, offset: int, size: int) -> bytes:
        with open(path, "rb", buffering=0) as file:
            file.seek(offset)
            parts = []
            while size > 0 and (part := file.read(size)):
                parts.append(part)
                size -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def open(self, path: str) -> int:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

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

    def unlink(self, path: str) -> None:
        try:
            os.unlink(path)
        except FileNotFoundError:
            return

    def rename(self, path: str, target: str) -> None:
        os.replace(path, target)

    def sync_folder(self, folder: str) -> None:
        handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


__all__ = ["OsFiles"]
