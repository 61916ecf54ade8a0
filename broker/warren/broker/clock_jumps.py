"""Detection of jumps of the machine's clock, which deadlines do not follow while the broker runs."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from warren.broker.model.clock import Clock

logger = logging.getLogger(__name__)

CHECK_INTERVAL: Final = 1.0
"""Seconds between two checks."""
JUMP_SECONDS: Final = 2.0
"""Seconds by which the clock must have moved against elapsed time since the last check to be logged."""


class ClockJumpMonitor:
    """Monitor that logs each jump of the machine's clock."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self._loop = loop
        self._clock = clock
        self._difference = clock.wall() - clock.now()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Check now and every CHECK_INTERVAL seconds."""
        difference = self._clock.wall() - self._clock.now()
        jump = difference - self._difference
        self._difference = difference
        if abs(jump) >= JUMP_SECONDS:
            logger.warning("event=broker.clock_jumped seconds=%.0f difference=%.0f", jump, difference)
        self._timer = self._loop.call_later(CHECK_INTERVAL, self.start)

    def stop(self) -> None:
        """Stop checking."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


__all__ = ["ClockJumpMonitor"]
