"""The time that expiries and delays go by, so that a test can move it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    def cancel(self) -> None: ...


class Clock(Protocol):
    """Seconds since 1970, and calls at a time. Heartbeats and socket timeouts do not go by it: they stay on real time."""

    def now(self) -> float: ...

    def call_at(self, when: float, call: Callable[[], None]) -> Timer:
        """Call once, on the broker's loop, when `now()` has reached `when`."""
        ...


class RealClock:
    """The machine's clock."""

    def now(self) -> float:
        return time.time()

    def call_at(self, when: float, call: Callable[[], None]) -> Timer:
        delay = max(0.0, when - time.time())
        # A timer of a month or more may not fit the platform's poll timeout; it then fires early, and whoever set it
        # looks at the clock anyway and sets the next one.
        return asyncio.get_running_loop().call_later(min(delay, 86400.0), call)
