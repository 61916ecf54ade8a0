"""The clock of the machine, and that of an App, which a test can set to another."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

from warren.sdk.protocols import Clock, Timer


class SystemClock:
    """Real time: `Clock` over `time.time` and the running event loop."""

    def now(self) -> float:
        return time.time()

    def call_at(self, when: float, callback: Callable[[], object]) -> Timer:
        return asyncio.get_running_loop().call_later(max(0.0, when - time.time()), callback)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class AppClock:
    """What an App and all that belongs to it takes for the time; it stays while the clock that it follows changes."""

    now: Callable[[], float]
    call_at: Callable[[float, Callable[[], object]], Timer]
    sleep: Callable[[float], Coroutine[Any, Any, None]]

    def __init__(self, clock: Clock) -> None:
        self.follow(clock)

    def follow(self, clock: Clock) -> None:
        """Take the time from `clock` from now on; for an App that does not run."""
        self.followed: Clock = clock
        # The methods themselves, so that asking costs what asking the clock itself costs.
        self.now, self.call_at, self.sleep = clock.now, clock.call_at, clock.sleep
