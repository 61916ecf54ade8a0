"""`Files`: the file-system calls of the store, as a protocol that tests implement to inject disk faults."""

from __future__ import annotations

import errno
from typing import Final, Protocol

DISK_FULL_ERRORS: Final = (errno.ENOSPC, errno.EDQUOT)
"""Error numbers of a full disk or an exhausted quota."""
SHORTAGE_ERRORS: Final = (*DISK_FULL_ERRORS, errno.EMFILE, errno.ENFILE)
"""Error numbers of a file that cannot be opened yet: the disk is full, or there is no descriptor left."""


class Files(Protocol):
    """File-system calls of the store. Every method may raise `OSError`."""

    def names(self, folder: str) -> list[str]:
        """Return the names of the files in a folder, unordered."""

    def size(self, path: str) -> int:
        """Return the size of a file in bytes."""

    def read(self, path: str, offset: int, size: int) -> bytes:
        """Return up to `size` bytes from `offset`; fewer only at the end of the file."""

    def open(self, path: str) -> int:
        """Open a file for writing and return its handle; create it with mode 0600 if it is missing."""

    def write(self, handle: int, data: bytes, offset: int) -> None:
        """Write all of `data` at `offset`. After an error any part of it may have been written."""

    def truncate(self, handle: int, size: int) -> None:
        """Cut a file to `size` bytes."""

    def sync(self, handle: int) -> None:
        """Sync a file: return when everything that was written to it is on disk."""

    def close(self, handle: int) -> None:
        """Close a handle that `open` returned."""

    def unlink(self, path: str) -> None:
        """Remove a file. A missing file is not an error."""

    def rename(self, path: str, target: str) -> None:
        """Give a file another name in the same folder, and replace the file that has that name, if there is one."""

    def sync_folder(self, folder: str) -> None:
        """Sync a folder: return when the names of all created, renamed and removed files are on disk."""


__all__ = ["DISK_FULL_ERRORS", "SHORTAGE_ERRORS", "Files"]
