"""Clock of message expiry, delays and timeouts. A test can replace it by a virtual one (`virtual_clock`)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    """A scheduled call that can be cancelled."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """Source of time, in seconds since 1970, and of scheduled calls.

    Heartbeats and socket timeouts use real time instead.
    """

    def now(self) -> float: ...

    def call_at(self, when: float, call: Callable[[], None]) -> Timer:
        """Schedule one call on the event loop for the time `when`, in seconds since 1970."""
        ...


class RealClock:
    """Clock of the operating system."""

    def now(self) -> float:
        return time.time()

    def call_at(self, when: float, call: Callable[[], None]) -> Timer:
        delay = max(0.0, when - time.time())
        # A delay of a month or more may not fit the platform's poll timeout. It is cut to a day: the timer then fires
        # early, and its owner compares the clock and schedules the next one.
        return asyncio.get_running_loop().call_later(min(delay, 86400.0), call)
