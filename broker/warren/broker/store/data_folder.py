"""The data folder: made once, used by one broker at a time, of a known format version."""

from __future__ import annotations

import fcntl
import os
import secrets
from pathlib import Path

from warren.broker.store.errors import StoreError, disk_error
from warren.broker.store.files import Files, OsFiles

VERSION = 2
"""What is written. Folders of older versions are read: 1 knows no bundles of messages."""
_TITLE = "warren data folder"


class DataFolder:
    """A data folder that this process holds the lock of.

    `identity` is a random number that the folder got when it was made. It seeds the checksums of the log, so
    that neither a body that a client sends nor a stale block of another file can pass for a record of this
    log.
    """

    def __init__(self, path: Path, identity: int, lock: int, files: Files) -> None:
        self.path = path
        self.identity = identity
        self.files = files
        self._lock = lock

    @property
    def log(self) -> str:
        """The folder of the log's segments."""
        return str(self.path / "log")

    @property
    def streams(self) -> str:
        """The folder of the streams' segments."""
        return str(self.path / "streams")

    @property
    def definitions(self) -> Path:
        """The database of the definitions."""
        return self.path / "definitions.db"

    @classmethod
    def open(cls, path: str | os.PathLike[str], files: Files | None = None) -> DataFolder:
        """Make the folder if it is missing (mode 0700), lock it and check its version.

        :raises StoreError: the folder is in use by another broker, of an unknown version, not writable, or
        holds
            files that are no data folder.
        """
        folder = Path(path).absolute()
        files = files or OsFiles()
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except FileExistsError:
            raise StoreError(f"{folder} is no folder: name another with --data-dir") from None
        except OSError as error:
            raise disk_error(f"make the data folder {folder}", error) from None
        lock = _lock(folder)
        try:
            identity = _identity(folder, files)
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
        """Release the lock. The lock file stays: unlinking it would let two brokers lock different files."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _lock(folder: Path) -> int:
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
        raise StoreError(f"data folder {folder} is in use by another broker (process {owner})") from None
    except OSError as error:
        os.close(lock)
        raise disk_error(f"lock the data folder {folder}", error) from None
    return lock


def _identity(folder: Path, files: Files) -> int:
    """The identity in the `format` file, which is written last: where it stands, the rest was made."""
    file = folder / "format"
    if file.exists():
        lines = file.read_text("ascii", "replace").splitlines()
        words = dict(line.split(" ", 1) for line in lines if " " in line)
        version, identity = words.get("version", ""), words.get("identity", "")
        if words.get("warren") != "data folder" or not version.isdigit():
            raise StoreError(f"{file} is damaged or no file of a broker: restore it or name another folder")
        if not 1 <= int(version) <= VERSION:
            raise StoreError(
                f"data folder {folder} has format version {version}, this broker knows {VERSION}: "
                "start it with the version of Warren that wrote it"
            )
        try:
            known = int(identity, 16)
        except ValueError:
            raise StoreError(f"{file} has no identity: restore it or name another folder") from None
        if int(version) < VERSION:
            _mark(file, known, files)
        else:
            # Where an earlier start was killed right after it had put that file there.
            files.sync_folder(str(folder))
        return known
    if any(folder.glob("log/*.log")):
        raise StoreError(f"{folder} has a log but no file `format`: restore it or name another folder")
    made = secrets.randbits(64)
    (folder / "log").mkdir(mode=0o700, exist_ok=True)
    files.sync_folder(str(folder))
    _mark(file, made, files)
    return made


def _mark(file: Path, identity: int, files: Files) -> None:
    """Write the `format` file."""
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
