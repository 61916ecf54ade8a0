"""A file system of the store that a test freezes: its writes and syncs do not return until it is thawed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.in_process_broker import InProcessBroker
from warren.broker.store.file_system.os_files import OsFiles


class FrozenFiles(OsFiles):
    """A file system whose writes and syncs do not return while `thawed` is not set."""

    def __init__(self) -> None:
        super().__init__()
        self.thawed = threading.Event()
        self.thawed.set()

    def write(self, handle: int, data: bytes, offset: int) -> None:
        self.thawed.wait()
        super().write(handle, data, offset)

    def sync(self, handle: int) -> None:
        self.thawed.wait()
        super().sync(handle)


@contextmanager
def broker_on(files: FrozenFiles, data_dir: Path) -> Iterator[InProcessBroker]:
    """Run a broker on a file system that the test may freeze. At the end it is thawed, since a stop waits for the disk."""
    try:
        with InProcessBroker(data_dir, files=files) as broker:
            try:
                yield broker
            finally:
                files.thawed.set()
    finally:
        files.thawed.set()
