"""The file calls that the log makes, as a Protocol, so that tests can inject faults."""

from __future__ import annotations

import errno
import os
from typing import Final, Protocol

NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)
"""The errors of a full disk."""

_sync = getattr(os, "fdatasync", os.fsync)
"""Systems without fdatasync have fsync, which syncs the metadata too."""


class Files(Protocol):
    """What the log needs of a file system. Every method may raise `OSError`."""

    def names(self, folder: str) -> list[str]:
        """The names of the files in a folder, in no order."""

    def size(self, path: str) -> int:
        """The size of a file in bytes."""

    def read(self, path: str, offset: int, size: int) -> bytes:
        """Up to `size` bytes from `offset` on; fewer only at the end of the file."""

    def open(self, path: str) -> int:
        """Open a file for writing, making it (mode 0600) if it is missing."""

    def write(self, handle: int, data: bytes, offset: int) -> None:
        """Write all of `data` at `offset`; on an error any part of it may have been written."""

    def truncate(self, handle: int, size: int) -> None:
        """Cut a file to `size` bytes."""

    def sync(self, handle: int) -> None:
        """Return once everything written to the file is on the disk."""

    def close(self, handle: int) -> None:
        """Close a file that `open` returned."""

    def unlink(self, path: str) -> None:
        """Remove a file; one that is missing is no error."""

    def sync_folder(self, folder: str) -> None:
        """Return once the names in a folder, made and removed, are on the disk."""


class OsFiles:
    """The file system of the operating system."""

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

    def sync_folder(self, folder: str) -> None:
        handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


__all__ = ["NO_ROOM", "Files", "OsFiles"]
