"""The data folder of a broker: its files, its identity and its format version."""

from __future__ import annotations

import logging
import os
import secrets
from pathlib import Path

from warren.broker.store.data_folder_lock import lock_data_folder, unlock_data_folder
from warren.broker.store.errors import StoreError, disk_error
from warren.broker.store.file_system.files_protocol import Files
from warren.broker.store.file_system.os_files import OsFiles
from warren.broker.store.format_files import (
    VERSION,
    StoredFormat,
    create_format,
    finish_format,
    load_format,
)

logger: logging.Logger = logging.getLogger(__name__)


class DataFolder:
    """A data folder whose lock this process holds.

    :param identity: a random number that the folder got when it was created. It seeds the checksums of the log, so that
        neither a body that a client sends nor a stale block of another file can pass for a record of this log.
    :param lock: handle of the lock file; -1 if there is none.
    :param files: the file system; tests inject faults with their own.
    :param stored_version: format version of the folder as it was found; 0 if it is new or its creation was cut short.
    """

    def __init__(
        self, path: Path, identity: int, lock: int, files: Files, stored_version: int = VERSION
    ) -> None:
        self.path = path
        self.identity = identity
        self.files = files
        self.stored_version = stored_version
        self._lock = lock

    @property
    def log(self) -> str:
        """Folder of the log's segments."""
        return str(self.path / "log")

    @property
    def streams(self) -> str:
        """Folder of the streams' segments."""
        return str(self.path / "streams")

    @property
    def definitions(self) -> Path:
        """Path of the definitions database."""
        return self.path / "definitions.db"

    @classmethod
    def open(cls, path: str | os.PathLike[str], files: Files | None = None) -> DataFolder:
        """Create the folder if it is missing (mode 0700), lock it and check its version.

        A folder that is new or of an older version keeps its version until `finish_upgrade`.

        :param files: the file system; None for that of the operating system.
        :raises StoreError: the folder is in use by another broker, of an unknown version, not writable, or holds other
            files than those of a data folder.
        """
        folder = Path(path).absolute()
        files = files or OsFiles()
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except FileExistsError:
            raise StoreError(f"{folder} is not a folder; choose another one with --data-dir") from None
        except OSError as error:
            raise disk_error(f"make the data folder {folder}", error) from None
        lock = lock_data_folder(folder)
        try:
            stored = _load(folder, files)
            if not (folder / "streams").is_dir():
                (folder / "streams").mkdir(mode=0o700)
                files.sync_folder(str(folder))
        except OSError as error:
            os.close(lock)
            raise disk_error(f"use the data folder {folder}", error) from None
        except BaseException:
            os.close(lock)
            raise
        return cls(folder, stored.identity, lock, files, stored.version)

    def finish_upgrade(self) -> None:
        """Record that the folder has the current format version, unless it had it already.

        Call it when all files of this version exist and are on disk, and before anything is written that an older
        version of Warren would misread. A kill before its end leaves the folder with its old version, and the next
        start upgrades it again.

        :raises StoreError: the disk failed.
        """
        if self.stored_version == VERSION:
            return
        try:
            finish_format(self.path, self.identity, self.files)
        except OSError as error:
            raise disk_error(f"write the format version in {self.path}", error) from None
        if self.stored_version:
            logger.info("event=data_folder.upgraded from_version=%d version=%d", self.stored_version, VERSION)

    def close(self) -> None:
        """Release the lock."""
        if self._lock >= 0:
            unlock_data_folder(self._lock)
            self._lock = -1


def _load(folder: Path, files: Files) -> StoredFormat:
    """Return version and identity of the folder; in a new one, create the folder of the log, and the identity."""
    stored = load_format(folder, files)
    if stored is None:
        (folder / "log").mkdir(mode=0o700, exist_ok=True)
        return create_format(folder, secrets.randbits(64), files)
    # An earlier start may have been killed right after it had put a file there.
    files.sync_folder(str(folder))
    return stored


__all__ = ["VERSION", "DataFolder"]
