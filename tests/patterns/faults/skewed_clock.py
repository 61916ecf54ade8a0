"""A clock of a machine whose time is wrong."""

from __future__ import annotations

from collections.abc import Callable

from warren.sdk.clock import SystemClock
from warren.sdk.protocols import Clock, Timer


class SkewedClock(Clock):
    """System clock that is `skew` seconds ahead; tests may change `skew`."""

    def __init__(self, seconds: float) -> None:
        self.skew = seconds
        self._true = SystemClock()

    def now(self) -> float:
        return self._true.now() + self.skew

    def call_at(self, when: float, callback: Callable[[], object]) -> Timer:
        return self._true.call_at(when - self.skew, callback)

    async def sleep(self, seconds: float) -> None:
        await self._true.sleep(seconds)
