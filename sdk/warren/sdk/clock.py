"""Clocks: the clock of the machine, and the clock of an App, which a test can replace."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

from warren.sdk.protocols import Clock, PollingClock, Timer


class SystemClock:
    """Clock of the machine: the time of `time.time`, and timers of the running event loop."""

    def now(self) -> float:
        return time.time()

    def call_at(self, when: float, callback: Callable[[], object]) -> Timer:
        return asyncio.get_running_loop().call_later(max(0.0, when - time.time()), callback)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class AppClock:
    """Clock of an App and its patterns, which takes the time from another clock.

    Parts of the App keep this object; a test replaces only the clock behind it, with `follow`.
    """

    now: Callable[[], float]
    call_at: Callable[[float, Callable[[], object]], Timer]
    sleep: Callable[[float], Coroutine[Any, Any, None]]

    def __init__(self, clock: Clock) -> None:
        self.follow(clock)

    def follow(self, clock: Clock) -> None:
        """Take the time from `clock` from now on. Call this only while the App does not run."""
        self.followed: Clock = clock
        # The bound methods of the clock, so that a call costs no more than a call of the clock itself.
        self.now, self.call_at, self.sleep = clock.now, clock.call_at, clock.sleep

    def poll_at(self, when: float, callback: Callable[[], object]) -> Timer:
        return poll_at(self.followed, when, callback)


def poll_at(clock: Clock, when: float, callback: Callable[[], object]) -> Timer:
    """Call `callback`, which looks for work that other processes may have left, at the Unix time `when`, in seconds.

    Use this for each step of a poll, and `clock.call_at` for work that is due at a certain time: a virtual clock leaves
    out polls that can find nothing, so that an hour of virtual time costs a few polls.
    """
    return clock.poll_at(when, callback) if isinstance(clock, PollingClock) else clock.call_at(when, callback)
