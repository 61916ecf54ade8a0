"""Watch of the log's writer thread, which gets the interpreter's lock sooner while its writes take long."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from warren.broker.store.log.switch_interval import SWITCH_INTERVAL
from warren.broker.store.log.writer_jobs import Batch

CHECK_SECONDS: Final = 0.005
"""Seconds of real time between two looks at the batch that is being written, and after which it is slow."""
REPORT_SECONDS: Final = 0.015
"""Seconds after which a batch is slow whose end the event loop has learned before it could look."""
FAST_CHECKS: Final = 100
"""Looks in a row that must find no slow batch before the switch interval is as usual again."""


class WriterWatch:
    """Watch that shortens the interpreter's switch interval while batches take long to be written.

    A busy event loop keeps the writer thread waiting for the interpreter's lock, and confirms of all clients wait for
    the thread. A batch is slow if a look finds it unwritten after `CHECK_SECONDS`, or if the report that it is written
    comes after `REPORT_SECONDS`. While nothing is written, the watch does nothing.

    :param in_flight: returns the batch that is being written, or None.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, in_flight: Callable[[], Batch | None]) -> None:
        self.is_watching = False
        """True until a look finds that nothing is being written, and that no slow batch was written lately."""
        self._loop = loop
        self._in_flight = in_flight
        self._fast_checks = 0
        self._is_short = False
        self._is_stopped = False
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Watch the batch that is being written, and those after it, unless the watch was stopped."""
        if self._is_stopped:
            return
        self.is_watching = True
        # By real time, also in a test with a virtual clock: a thread writes.
        self._timer = self._loop.call_later(CHECK_SECONDS, self._check)

    def stop(self) -> None:
        """End the watch for good, and restore the switch interval."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._end()

    def on_written(self, batch: Batch) -> None:
        """Note how long a batch has taken to be written."""
        if self.is_watching and time.monotonic() - batch.submitted_at >= REPORT_SECONDS:
            self._use_short_interval()

    def _check(self) -> None:
        batch = self._in_flight()
        if batch is not None and time.monotonic() - batch.submitted_at >= CHECK_SECONDS:
            self._use_short_interval()
        else:
            self._fast_checks += 1
        if batch is None and (not self._is_short or self._fast_checks >= FAST_CHECKS):
            self._end()
            return
        if self._is_short and self._fast_checks >= FAST_CHECKS:
            self._use_usual_interval()
        self._timer = self._loop.call_later(CHECK_SECONDS, self._check)

    def _end(self) -> None:
        self.is_watching = False
        self._use_usual_interval()

    def _use_short_interval(self) -> None:
        self._fast_checks = 0
        if not self._is_short:
            self._is_short = True
            SWITCH_INTERVAL.shorten()

    def _use_usual_interval(self) -> None:
        self._fast_checks = 0
        if self._is_short:
            self._is_short = False
            SWITCH_INTERVAL.restore()


__all__ = ["CHECK_SECONDS", "FAST_CHECKS", "REPORT_SECONDS", "WriterWatch"]
