"""The watch over memory and disk: alarms while the broker takes too much of one, or finds too little of the other.

https://www.rabbitmq.com/docs/memory and .../docs/disk-alarms.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Final

from warren.broker.connection.node import DISK, MEMORY, Node
from warren.broker.process_memory import release_memory, resident_memory

INTERVAL: Final = 0.25
"""Seconds between two looks: what can be published meanwhile is what memory may exceed its limit by."""
SOURCE: Final = "watch"


class Resources:
    """Looks four times a second, and whenever a limit is changed.

    :param memory_limit: bytes of this process that may be resident; None does not look.
    :param data_dir: the folder whose file system has to have `disk_free_limit` bytes free; None does not look.
    """

    def __init__(
        self, node: Node, memory_limit: int | None, data_dir: Path | None, disk_free_limit: int
    ) -> None:
        self._node = node
        self._memory_limit = memory_limit
        self._data_dir = data_dir
        self._disk_free_limit = disk_free_limit
        self._timer: asyncio.TimerHandle | None = None

    @property
    def memory_limit(self) -> int | None:
        return self._memory_limit

    @memory_limit.setter
    def memory_limit(self, value: int | None) -> None:
        self._memory_limit = value
        self._again()

    @property
    def disk_free_limit(self) -> int:
        return self._disk_free_limit

    @disk_free_limit.setter
    def disk_free_limit(self, value: int) -> None:
        self._disk_free_limit = value
        self._again()

    @property
    def memory_used(self) -> int:
        """Bytes of this process that are resident."""
        return resident_memory()

    @property
    def disk_free(self) -> int | None:
        """Bytes that are free where the data folder is; None if there is none, or the system does not tell."""
        if self._data_dir is None:
            return None
        try:
            found = os.statvfs(self._data_dir)
        except OSError:
            return None
        return found.f_bavail * found.f_frsize

    def start(self) -> None:
        """Look now, and go on looking, if there is anything to look at."""
        if self._memory_limit is None and self._data_dir is None:
            return
        # A message that came in this turn of the loop need not wait for it.
        self._node.flush_all()
        self.look()
        self._timer = self._node.loop.call_later(INTERVAL, self.start)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _again(self) -> None:
        self.look()
        self.stop()
        self.start()

    def look(self) -> None:
        """Raise or clear the alarms, as things stand now."""
        limit = self._memory_limit
        over = limit is not None and resident_memory() > limit
        if over:
            # What was freed may still be the allocator's: it counts only if the system would not get it back.
            release_memory()
            over = limit is not None and resident_memory() > limit
        self._node.set_alarm(f"memory {SOURCE}", MEMORY, over)
        free = self.disk_free
        self._node.set_alarm(f"disk {SOURCE}", DISK, free is not None and free < self._disk_free_limit)
