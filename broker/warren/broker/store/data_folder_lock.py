"""Lock of a data folder: one broker at a time uses it."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from warren.broker.store.errors import StoreError, disk_error


def lock_data_folder(folder: Path) -> int:
    """Lock a data folder and write the process id into its lock file; return the file's handle.

    :raises StoreError: another broker holds the lock, or the file cannot be written.
    """
    try:
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise disk_error(f"write in the data folder {folder}", error) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(lock, 0)
        os.pwrite(lock, b"%d\n" % os.getpid(), 0)
    except BlockingIOError:
        owner = os.pread(lock, 32, 0).decode("ascii", "replace").strip() or "unknown"
        os.close(lock)
        raise StoreError(
            f"data folder {folder} is in use by another broker (process {owner}); stop it, or choose another folder with"
            " --data-dir"
        ) from None
    except OSError as error:
        os.close(lock)
        raise disk_error(f"lock the data folder {folder}", error) from None
    return lock


def unlock_data_folder(lock: int) -> None:
    """Release the lock. The lock file stays: removing it would let two brokers lock different files."""
    os.close(lock)


__all__ = ["lock_data_folder", "unlock_data_folder"]
