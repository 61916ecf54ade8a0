"""The data folder of a broker: its files, its identity and its format version."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from warren.broker.store.data_folder_lock import lock_data_folder, unlock_data_folder
from warren.broker.store.errors import StoreError, disk_error
from warren.broker.store.file_system.files_protocol import Files
from warren.broker.store.file_system.os_files import OsFiles

VERSION = 2
"""Format version that this broker writes. It can read version 1, too, which has no log records of the type BUNDLE."""
_TITLE = "warren data folder"


class DataFolder:
    """A data folder whose lock this process holds.

    :param identity: a random number that the folder got when it was created. It seeds the checksums of the log, so that
        neither a body that a client sends nor a stale block of another file can pass for a record of this log.
    :param lock: handle of the lock file; -1 if there is none.
    :param files: the file system; tests inject faults with their own.
    """

    def __init__(self, path: Path, identity: int, lock: int, files: Files) -> None:
        self.path = path
        self.identity = identity
        self.files = files
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
            identity = _load_identity(folder, files)
            if not (folder / "streams").is_dir():
                (folder / "streams").mkdir(mode=0o700)
                files.sync_folder(str(folder))
        except OSError as error:
            os.close(lock)
            raise disk_error(f"use the data folder {folder}", error) from None
        except BaseException:
            os.close(lock)
            raise
        return cls(folder, identity, lock, files)

    def close(self) -> None:
        """Release the lock."""
        if self._lock >= 0:
            unlock_data_folder(self._lock)
            self._lock = -1


def _load_identity(folder: Path, files: Files) -> int:
    """Return the folder's random number (its identity) from the `format` file; in a new folder, create file and number.

    The `format` file is written last: if it exists, so does the folder of the log.
    """
    file = folder / "format"
    if file.exists():
        lines = file.read_text("ascii", "replace").splitlines()
        words = dict(line.split(" ", 1) for line in lines if " " in line)
        version, identity = words.get("version", ""), words.get("identity", "")
        if words.get("warren") != "data folder" or not version.isdigit():
            raise StoreError(
                f"{file} is damaged or was not written by Warren; restore it or choose another folder with --data-dir"
            )
        if not 1 <= int(version) <= VERSION:
            raise StoreError(
                f"data folder {folder} has format version {version}, but this broker reads versions up to {VERSION}; "
                "start it with the version of Warren that wrote it"
            )
        try:
            stored = int(identity, 16)
        except ValueError:
            raise StoreError(
                f"{file} has no identity; restore it or choose another folder with --data-dir"
            ) from None
        if int(version) < VERSION:
            _write_format_file(file, stored, files)
        else:
            # An earlier start may have been killed right after it had put the file there.
            files.sync_folder(str(folder))
        return stored
    if any(folder.glob("log/*.log")):
        raise StoreError(
            f"{folder} has a log but no file `format`; restore it or choose another folder with --data-dir"
        )
    created = secrets.randbits(64)
    (folder / "log").mkdir(mode=0o700, exist_ok=True)
    files.sync_folder(str(folder))
    _write_format_file(file, created, files)
    return created


def _write_format_file(file: Path, identity: int, files: Files) -> None:
    """Write the `format` file, with the format version and the identity of the folder, and sync it."""
    text = f"{_TITLE}\nversion {VERSION}\nidentity {identity:016x}\n"
    partial = str(file) + ".new"
    files.unlink(partial)
    handle = files.open(partial)
    try:
        files.write(handle, text.encode("ascii"), 0)
        files.sync(handle)
    finally:
        files.close(handle)
    os.replace(partial, file)
    files.sync_folder(str(file.parent))


__all__ = ["VERSION", "DataFolder"]
