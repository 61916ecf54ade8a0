"""Growing delays for a retry policy: `Retry(3).then(*backoff("1s", factor=3, times=5), jitter=0.25)`."""

from __future__ import annotations

from datetime import timedelta

from warren.sdk import ConfigError
from warren.sdk.extend import Duration, check_number, check_whole_number, duration


def backoff(
    first: Duration, *, factor: float = 2.0, times: int = 5, longest: Duration = "1h"
) -> tuple[timedelta, ...]:
    """Return `times` growing delays: the first is `first`, and each further one is `factor` times the one before, but
    at most `longest`. Delays are rounded to whole milliseconds.

    :raises ConfigError: `times` or `factor` is below 1, or a duration is invalid.
    """
    check_whole_number("backoff: times", times)
    check_number("backoff: factor", factor, 1)
    if duration(first) <= timedelta(0):
        raise ConfigError("backoff: the first delay must be above 0")
    cap = duration(longest).total_seconds()
    seconds = duration(first).total_seconds()
    delays = []
    for _ in range(times):
        delays.append(timedelta(milliseconds=round(min(seconds, cap) * 1000)))
        seconds = min(seconds * factor, cap)
    return tuple(delays)


__all__ = ["backoff"]
