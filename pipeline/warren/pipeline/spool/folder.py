"""Folder of a spool, whose files keep messages of a queue until Spark has processed them: lock against other processes,
identity of the spool, and crash-safe writing of files.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import time
import uuid
from pathlib import Path

from warren.pipeline.errors import PipelineError

FORMAT = 1
LOCK_TIMEOUT = 10.0
"""Seconds to wait until another process releases its lock on the spool's folder: a killed Spark driver may take some
time to end."""
_NAME = "spool.json"


class SpoolFolder:
    """Folder with the files of a spool, in which messages of one queue are kept until Spark has processed them. It is
    created if missing, and locked against other processes.

    :param queue: queue whose messages the files hold; a folder cannot be used for another queue later
    :param wait: seconds to wait for the lock
    :raises PipelineError: if the folder belongs to another queue, is locked by another process, or cannot be used
    """

    def __init__(self, path: Path, queue: str, wait: float = LOCK_TIMEOUT) -> None:
        self.path = path
        try:
            make_folder(path)
            self._lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
            try:
                self._acquire_lock(wait)
                self.identity = self._check_owner(queue)
            except BaseException:
                os.close(self._lock)
                raise
        except OSError as error:
            raise unusable_error(path, error) from None

    def close(self) -> None:
        os.close(self._lock)

    def write(self, name: str, data: bytes) -> None:
        """Write `data` to the file `name` of the folder so that after a crash it has either the old or the new
        content."""
        beside = self.path / f"{name}.new"
        with beside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self.path / name)
        sync_folder(self.path)

    def _acquire_lock(self, wait: float) -> None:
        """Lock the folder, and write this process's id and host to the lock file, so that another process that waits in
        vain can name them in its error.

        :param wait: seconds to wait for the lock
        :raises PipelineError: if another process still has the lock then
        """
        deadline = time.monotonic() + wait
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                    raise
            if time.monotonic() >= deadline:
                owner = os.pread(self._lock, 200, 0).decode(errors="replace") or "an unknown process"
                raise PipelineError(
                    f"the spool {self.path} is used by another query ({owner}): give each query a spoolDir of its own"
                )
            time.sleep(0.1)
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)

    def _check_owner(self, queue: str) -> str:
        """Check that the folder's spool belongs to the queue, and return the spool's identity, a random text that
        Spark's checkpoint refers to. A new spool gets one.

        :raises PipelineError: if the spool belongs to another queue, or has another format
        """
        try:
            stored = json.loads((self.path / _NAME).read_bytes())
        except FileNotFoundError:
            stored = {"format": FORMAT, "queue": queue, "spool": uuid.uuid4().hex}
            self.write(_NAME, json.dumps(stored).encode())
        except ValueError:
            raise PipelineError(f"{self.path / _NAME} is damaged: it is not JSON") from None
        if stored.get("format") != FORMAT:
            raise PipelineError(
                f"the spool {self.path} has format {stored.get('format')}: this version of Warren supports format {FORMAT}"
            )
        if stored.get("queue") != queue:
            raise PipelineError(
                f"the spool {self.path} belongs to queue {stored.get('queue')!r}: give each queue a spoolDir of its own"
            )
        return str(stored["spool"])


def make_folder(path: Path) -> None:
    """Create a folder and its parents, and sync them to disk, so that they survive a crash."""
    if not path.is_dir():
        make_folder(path.parent)
        path.mkdir(exist_ok=True)
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Sync a folder, so that created and renamed files survive a crash of the machine (fsync(2), NOTES)."""
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def unusable_error(path: Path, error: OSError) -> PipelineError:
    """Return the error for a folder that cannot be used because of an error of the operating system."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    return PipelineError(f"the spool {path} cannot be used: {reason}")
