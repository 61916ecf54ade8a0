"""Durations as users write them: a `timedelta`, seconds, or a text such as `5s`, `1m`, `250ms`."""

from __future__ import annotations

import re
from datetime import timedelta

from warren.sdk.errors import ConfigError

Duration = timedelta | float | str
"""A `timedelta`, a number of seconds, or a number with its unit: `ms`, `s`, `m`, `h`, `d`."""

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_TEXT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)\s*")


def duration(value: Duration) -> timedelta:
    """Return the value as a `timedelta`.

    :raises ConfigError: if it is not a duration, or is negative.
    """
    if isinstance(value, str):
        found = _TEXT.fullmatch(value)
        if found is None:
            raise ConfigError(f"{value!r} is no duration: write 250ms, 5s, 1m, 2h or 1d")
        return timedelta(seconds=float(found[1]) * _SECONDS[found[2]])
    try:
        length = value if isinstance(value, timedelta) else timedelta(seconds=value)
    except (TypeError, ValueError, OverflowError):
        raise ConfigError(
            f"{value!r} is no duration: write a timedelta, a number of seconds, or a text such as 5s"
        ) from None
    if length < timedelta(0):
        raise ConfigError(f"{value!r} is no duration: it is negative")
    return length


def milliseconds(length: timedelta) -> int:
    """Return the duration in milliseconds, rounded up, as AMQP arguments and properties use it."""
    return -(-length // timedelta(milliseconds=1))
