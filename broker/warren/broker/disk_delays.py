"""Detection of a disk that does not answer: records or definitions wait for a write or a sync that does not return.

The event loop never waits for a write or a sync, which threads make. So clients that do not wait for the disk are served
meanwhile, heartbeats go on, and this monitor runs.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from warren.broker.connection.flow_control import LOG_SOURCE, FlowControl

if TYPE_CHECKING:
    from warren.broker.store.definitions.definitions_database import Definitions
    from warren.broker.store.log.log import Log

logger = logging.getLogger(__name__)

CHECK_INTERVAL: Final = 0.25
"""Seconds between two checks."""
DELAY_SECONDS: Final = 5.0
"""Seconds without progress after which a disk counts as not answering."""
MOST_PASSED: Final = 1.0
"""Most seconds that one check adds, however late it is."""

Position = tuple[int, int]


class DiskDelayMonitor:
    """Monitor of the time for which the disk has not answered.

    A full disk does not count: it answers, and raises an alarm.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, flow: FlowControl, log: Log, definitions: Definitions
    ) -> None:
        self.threshold = DELAY_SECONDS
        """Seconds after which a delay is logged, counted, and fails the health check."""
        self.delays = 0
        """Number of delays so far."""
        self.longest = 0.0
        """Seconds of the longest delay so far."""
        self.delayed = False
        """True while the disk has not answered for longer than `threshold`."""
        self._loop = loop
        self._flow = flow
        self._log = log
        self._definitions = definitions
        self._log_wait = _Wait()
        self._definitions_wait = _Wait()
        self._seconds = 0.0
        self._checked_at = loop.time()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def seconds(self) -> float:
        """Seconds for which the disk has not answered; 0.0 if nothing waits for it."""
        return self._seconds

    def start(self) -> None:
        """Check now and every CHECK_INTERVAL seconds."""
        self.check()
        self._timer = self._loop.call_later(CHECK_INTERVAL, self.start)

    def stop(self) -> None:
        """Stop checking."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def check(self) -> None:
        """Measure how long the disk has not answered, and log the beginning and the end of a delay."""
        log, definitions, now = self._log, self._definitions, self._loop.time()
        # A process that was suspended has not waited for the disk.
        passed = min(now - self._checked_at, MOST_PASSED)
        self._checked_at = now
        writes = log.unwritten_bytes > 0 and LOG_SOURCE not in self._flow.alarms
        position = (int(log.synced), int(log.written_position))
        commits = definitions.submitted > definitions.committed
        before = self._seconds
        self._seconds = max(
            self._log_wait.seconds(writes, position, passed),
            self._definitions_wait.seconds(commits, (definitions.committed, 0), passed),
        )
        if self._seconds >= self.threshold:
            if not self.delayed:
                self.delayed = True
                self.delays += 1
                logger.error(
                    "event=store.sync_delayed seconds=%.1f unwritten_bytes=%d",
                    self._seconds,
                    log.unwritten_bytes,
                )
            self.longest = max(self.longest, self._seconds)
        elif self.delayed:
            self.delayed = False
            logger.warning("event=store.sync_resumed seconds=%.1f", before)


class _Wait:
    """Time for which something waits without progress."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._position: Position = (-1, -1)

    def seconds(self, waits: bool, position: Position, passed: float) -> float:
        """Return the seconds for which it was seen to wait at this position; 0.0 if it does not wait.

        :param waits: something has been submitted and is not on the disk.
        :param position: what is on the disk; it changes with each progress.
        :param passed: seconds since the last call.
        """
        if waits and position == self._position:
            self._seconds += passed
        else:
            self._seconds = 0.0
        self._position = position if waits else (-1, -1)
        return self._seconds


__all__ = ["DELAY_SECONDS", "DiskDelayMonitor"]
