"""Monotonic time, by which a process judges whether a lease of its own may have passed."""

from __future__ import annotations

import time

from warren.sdk import Clock, SystemClock
from warren.sdk.extend import AppClock


def monotonic_time(clock: Clock) -> float:
    """Return the seconds since an arbitrary start, by the machine's monotonic clock or, in a test, by the test's
    clock."""
    followed = clock.followed if isinstance(clock, AppClock) else clock
    return time.monotonic() if isinstance(followed, SystemClock) else followed.now()


__all__ = ["monotonic_time"]
