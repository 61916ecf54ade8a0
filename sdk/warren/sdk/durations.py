"""Parameters that are durations: read them in the forms of `Duration`, and refuse others as `ConfigError`."""

from __future__ import annotations

from datetime import timedelta

from warren.core.durations import Duration, parse_duration
from warren.sdk.errors import ConfigError

__all__ = ["Duration", "duration", "milliseconds", "optional_duration", "seconds"]


def duration(value: Duration, name: str = "", *, positive: bool = False) -> timedelta:
    """Return the value as a `timedelta`.

    :param name: name of the parameter, for the error.
    :param positive: refuse 0 too.
    :raises ConfigError: if it is not a duration, or is negative.
    """
    try:
        length = parse_duration(value)
    except ValueError as error:
        raise ConfigError(f"{name}={error}" if name else str(error)) from None
    if positive and not length:
        raise ConfigError(f"{name or 'a duration'} must be more than 0")
    return length


def optional_duration(value: Duration | None, name: str = "", *, positive: bool = False) -> timedelta | None:
    """Return the value as a `timedelta`, and None for None; parameters and errors are those of `duration`."""
    return None if value is None else duration(value, name, positive=positive)


def seconds(value: Duration, name: str = "timeout", *, positive: bool = False) -> float:
    """Return the value in seconds; parameters and errors are those of `duration`."""
    # Every publish passes its timeout, which is nearly always a float.
    if type(value) is float and 0.0 < value < 1e9:
        return value
    return duration(value, name, positive=positive).total_seconds()


def milliseconds(length: timedelta) -> int:
    """Return the duration in milliseconds, rounded up, as AMQP arguments and properties use it."""
    return -(-length // timedelta(milliseconds=1))
