"""Lock of a data folder: one broker at a time uses it."""

from __future__ import annotations

import os
from pathlib import Path

from warren.broker.store.errors import StoreError, disk_error
from warren.core.operating_system.files import BINARY, lock_file, read_at, write_at


def lock_data_folder(folder: Path) -> int:
    """Lock a data folder and write the process id into its lock file; return the file's handle.

    :raises StoreError: another broker holds the lock, or the file cannot be written.
    """
    try:
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | BINARY, 0o600)
    except OSError as error:
        raise disk_error(f"write in the data folder {folder}", error) from None
    try:
        held = lock_file(lock)
        if held:
            os.ftruncate(lock, 0)
            write_at(lock, b"%d\n" % os.getpid(), 0)
        else:
            owner = read_at(lock, 32, 0).decode("ascii", "replace").strip() or "unknown"
    except OSError as error:
        os.close(lock)
        raise disk_error(f"lock the data folder {folder}", error) from None
    if not held:
        os.close(lock)
        raise StoreError(
            f"data folder {folder} is in use by another broker (process {owner}); stop it, or choose another folder with"
            " --data-dir"
        )
    return lock


def unlock_data_folder(lock: int) -> None:
    """Release the lock. The lock file stays: removing it would let two brokers lock different files."""
    os.close(lock)


__all__ = ["lock_data_folder", "unlock_data_folder"]
