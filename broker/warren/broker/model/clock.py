"""Clock of message expiry, delays and timeouts. A test can replace it by a virtual one (`virtual_clock`)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from warren.core.operating_system.portable_switch import offered, present

_BOOT_TIME: Final[int | None] = offered("time", "CLOCK_BOOTTIME")
_elapsed: Final[Callable[[], float]] = (
    time.monotonic if _BOOT_TIME is None else partial(present("time", "clock_gettime"), _BOOT_TIME)
)
"""Clock that never jumps. On Linux it also counts the time for which the machine is suspended."""


class Timer(Protocol):
    """A scheduled call that can be cancelled."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """Source of time, in seconds since 1970, and of scheduled calls.

    Heartbeats and socket timeouts use the time of the event loop instead.
    """

    def now(self) -> float:
        """Return the time by which deadlines are set and judged. It never jumps while the process runs."""
        ...

    def wall(self) -> float:
        """Return the time that clients and operators see, which follows the machine's clock."""
        ...

    def call_at(self, when: float, call: Callable[[], None]) -> Timer:
        """Schedule one call on the event loop for the time `when`, in seconds since 1970."""
        ...


class RealClock:
    """Clock of the operating system.

    Deadlines start from the machine's clock when the object is made, and count elapsed time from there. So a jump of
    that clock neither ends them early nor keeps them from ending. Stored deadlines follow it with the next start.
    """

    def __init__(self) -> None:
        self._offset = time.time() - _elapsed()

    def now(self) -> float:
        return _elapsed() + self._offset

    def wall(self) -> float:
        return time.time()

    def call_at(self, when: float, call: Callable[[], None]) -> Timer:
        delay = max(0.0, when - self.now())
        # A delay of a month or more may not fit the platform's poll timeout. It is cut to a day: the timer then fires
        # early, and its owner compares the clock and schedules the next one.
        return asyncio.get_running_loop().call_later(min(delay, 86400.0), call)
