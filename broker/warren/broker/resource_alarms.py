"""Resource alarms: raised while the broker uses too much memory, or finds too little free disk space.

https://www.rabbitmq.com/docs/memory and .../docs/disk-alarms.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from warren.broker.connection.broker_node import BrokerNode
from warren.broker.connection.flow_control import DISK_RESOURCE, MEMORY_RESOURCE
from warren.broker.free_disk_space import FreeDiskSpace
from warren.core.operating_system.memory import release_memory, resident_memory

CHECK_INTERVAL: Final = 0.25
"""Seconds between two checks of memory and disk. In between, publishes may exceed the memory limit."""
BLOCKED_INPUT_SECONDS: Final = 5.0
"""Seconds of a memory alarm after which it is cleared if only the input of blocked connections keeps it up."""
MEMORY_SOURCE: Final = "memory watch"
DISK_SOURCE: Final = "disk watch"


class ResourceMonitor:
    """Monitor that raises and clears the broker's memory and disk alarms.

    It checks periodically, and whenever a limit is changed.

    :param memory_limit: bytes of this process that may be resident; None is no limit.
    :param data_dir: folder whose file system must have `disk_free_limit` bytes free; None checks no disk.
    :param disk_free_limit: bytes that must be free on the data folder's file system.
    """

    def __init__(
        self, node: BrokerNode, memory_limit: int | None, data_dir: Path | None, disk_free_limit: int
    ) -> None:
        self._node = node
        self._memory_limit = memory_limit
        self._data_dir = data_dir
        self._disk_free_limit = disk_free_limit
        self._free_space = FreeDiskSpace(data_dir, CHECK_INTERVAL) if data_dir is not None else None
        if self._free_space is not None:
            self._free_space.start()
        self._timer: asyncio.TimerHandle | None = None
        self._over_since: float | None = None
        """Time of the event loop since which the memory limit is exceeded; None if it is not."""

    @property
    def memory_limit(self) -> int | None:
        """Bytes of this process that may be resident; None is no limit."""
        return self._memory_limit

    @memory_limit.setter
    def memory_limit(self, value: int | None) -> None:
        self._memory_limit = value
        self._restart()

    @property
    def disk_free_limit(self) -> int:
        """Bytes that must be free on the data folder's file system; with less, the disk alarm is raised."""
        return self._disk_free_limit

    @disk_free_limit.setter
    def disk_free_limit(self, value: int) -> None:
        self._disk_free_limit = value
        self._restart()

    @property
    def memory_used(self) -> int:
        """Bytes of this process that are resident in memory."""
        return resident_memory()

    @property
    def disk_free(self) -> int | None:
        """Bytes that are free on the data folder's disk; None without a folder, or if the system reports no number."""
        return self._free_space.latest if self._free_space is not None else None

    def start(self) -> None:
        """Check now and every CHECK_INTERVAL seconds, unless there is no limit to check."""
        if self._memory_limit is None and self._data_dir is None:
            return
        # Output of this turn of the loop need not wait for the check.
        self._node.flush_all()
        self.check()
        self._timer = self._node.loop.call_later(CHECK_INTERVAL, self.start)

    def stop(self) -> None:
        """Stop checking; alarms stay as they are."""
        self._cancel_timer()
        if self._free_space is not None:
            self._free_space.stop()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _restart(self) -> None:
        self.check()
        self._cancel_timer()
        self.start()

    def check(self) -> None:
        """Compare memory and free disk space with their limits, and raise or clear the alarms."""
        self._node.flow.set_alarm(MEMORY_SOURCE, MEMORY_RESOURCE, self._is_over_memory_limit())
        free = self.disk_free
        self._node.flow.set_alarm(
            DISK_SOURCE, DISK_RESOURCE, free is not None and free < self._disk_free_limit
        )

    def _is_over_memory_limit(self) -> bool:
        """Return whether this process takes more memory than it may, and whether blocking publishers can change that.

        After BLOCKED_INPUT_SECONDS of an alarm, the input of blocked connections does not count: it leaves memory only
        when they are read again, so that it would keep up the alarm for ever.
        """
        limit = self._memory_limit
        if limit is None or resident_memory() <= limit:
            self._over_since = None
            return False
        # Freed memory that the allocator still holds does not count, if the system can have it back.
        release_memory()
        excess = resident_memory() - limit
        now = self._node.loop.time()
        if excess <= 0:
            self._over_since = None
        elif self._over_since is None:
            self._over_since = now
        elif (
            now - self._over_since >= BLOCKED_INPUT_SECONDS
            and excess <= self._node.flow.blocked_input_bytes()
        ):
            self._over_since = None
        return self._over_since is not None
