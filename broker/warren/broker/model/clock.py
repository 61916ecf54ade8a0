"""The time that expiries and delays go by, so that a test can move it."""

from __future__ import annotations

import asyncio
import heapq
import itertools
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


class VirtualTimer:
    def __init__(self, call: Callable[[], None]) -> None:
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        self.call = None

    def fire(self) -> None:
        call, self.call = self.call, None
        if call is not None:
            call()


class VirtualClock:
    """A clock that stands still until `advance` moves it, firing what is due at its exact time and in order."""

    def __init__(self, start: float = 1_000_000_000.0) -> None:
        self._now = start
        self._timers: list[tuple[float, int, VirtualTimer]] = []
        self._count = itertools.count()

    def now(self) -> float:
        return self._now

    def call_at(self, when: float, call: Callable[[], None]) -> VirtualTimer:
        timer = VirtualTimer(call)
        if when <= self._now:
            asyncio.get_running_loop().call_soon(timer.fire)
            return timer
        heapq.heappush(self._timers, (when, next(self._count), timer))
        return timer

    def advance(self, seconds: float) -> None:
        """Move the time on; what falls due on the way is called with the clock at its time."""
        end = self._now + seconds
        while self._timers and self._timers[0][0] <= end:
            when, _, timer = heapq.heappop(self._timers)
            if timer.call is not None:
                self._now = max(self._now, when)
                timer.call()
        self._now = end
