"""Durations as users write them: a `timedelta`, seconds, or a text such as `5s`, `250ms` or `1h30m`."""

from __future__ import annotations

import re
from datetime import timedelta
from math import isfinite
from typing import TypeAlias

Duration: TypeAlias = timedelta | float | str
"""A `timedelta`, a number of seconds, or a text of numbers with their units `ms`, `s`, `m`, `h` and `d`, such as `5s`,
`250ms`, `1.5h` or `1h30m`. It is finite, and 0 or more."""

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)\s*", re.ASCII)
_NUMBER = re.compile(r"\s*\d+(?:\.\d+)?\s*", re.ASCII)
_FORMS = "write a timedelta, a number of seconds, or a text such as 250ms, 5s, 30m or 1h30m"
_SHOWN = 40
"""Characters of a refused text that its error contains at most."""


def parse_duration(value: Duration, *, longest: timedelta = timedelta.max) -> timedelta:
    """Return the value as a `timedelta`.

    :param longest: longest duration to accept.
    :raises ValueError: if it is not a duration, is negative, or is longer than `longest`; with a text in one line that
        begins with the value.
    """
    if isinstance(value, timedelta):
        length = value
    elif isinstance(value, str):
        length = _parse_text(value, longest)
    elif isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{_shown(value)} is no duration: {_FORMS}")
    elif isinstance(value, float) and not isfinite(value):
        raise ValueError(f"{value} is no duration: it must be finite")
    else:
        length = _of_seconds(value, value, longest)
    if length < timedelta(0):
        raise ValueError(f"{_shown(value)} is no duration: it is negative")
    if length > longest:
        raise _too_long(value, longest)
    return length


def parse_seconds(text: str) -> float:
    """Return the value of a command-line option in seconds: a number of them, or a text as for `parse_duration`.

    :raises ValueError: if the text is neither, or is longer than the longest `timedelta`.
    """
    if not _NUMBER.fullmatch(text):
        return parse_duration(text).total_seconds()
    seconds = float(text)
    if seconds > timedelta.max.total_seconds():
        raise _too_long(text, timedelta.max)
    return seconds


def _parse_text(text: str, longest: timedelta) -> timedelta:
    """Add up the parts of a text such as `1h30m`."""
    total, end = 0.0, len(text) - len(text.lstrip())
    while (part := _PART.match(text, end)) is not None:
        total += float(part[1]) * _SECONDS[part[2]]
        end = part.end()
    if end == len(text) and text.strip():
        return _of_seconds(total, text, longest)
    if _NUMBER.fullmatch(text):
        number = text.strip()
        raise ValueError(
            f"{_shown(text)} has no unit: write {_shown(number)[1:-1]}s for seconds, or ms, m, h, d"
        )
    if text.lstrip().startswith("-"):
        raise ValueError(f"{_shown(text)} is no duration: it is negative")
    raise ValueError(f"{_shown(text)} is no duration: {_FORMS}")


def _of_seconds(seconds: float, value: object, longest: timedelta) -> timedelta:
    try:
        return timedelta(seconds=seconds)
    except (OverflowError, ValueError):
        raise _too_long(value, longest) from None


def _too_long(value: object, longest: timedelta) -> ValueError:
    return ValueError(f"{_shown(value)} is too long: the longest is {longest.days}d")


def _shown(value: object) -> str:
    shown = f"{value.total_seconds():g}s" if isinstance(value, timedelta) else repr(value)
    return shown if len(shown) <= _SHOWN else f"{shown[: _SHOWN - 3]}..."
