"""Free space of a file system, queried in a thread: a disk that does not answer must not hold up the event loop."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path


class FreeDiskSpace:
    """Free bytes on the file system of a folder, as of the last answer.

    :param folder: the folder.
    :param interval: seconds between two queries.
    """

    def __init__(self, folder: Path, interval: float) -> None:
        self.latest = _free_bytes(folder)
        """Bytes that were free when the file system answered last; None if it reports no number."""
        self._folder = folder
        self._interval = interval
        self._stopped = threading.Event()

    def start(self) -> None:
        """Start the thread. It ends with the process, or after `stop` with the next answer of the file system."""
        threading.Thread(target=self._run, name="warren-disk-space", daemon=True).start()

    def stop(self) -> None:
        """Stop the queries."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(self._interval):
            self.latest = _free_bytes(self._folder)


def _free_bytes(folder: Path) -> int | None:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


__all__ = ["FreeDiskSpace"]
