"""Parsing and formatting of durations: `30m` on the command line, `1 h 30 min` in a report."""

from __future__ import annotations

import argparse
from datetime import timedelta

from warren.core.durations import parse_duration, parse_seconds

MAX_DURATION = timedelta(days=36_500)
"""Longest duration that is accepted. It is limited so that Python and Spark can add several durations to a time."""


def parse(text: str) -> timedelta:
    """Return the duration that a text such as `90s`, `30m`, `2h`, `1d` or `1h30m` names.

    :raises ValueError: if the text is not a duration of whole seconds, or if it is longer than `MAX_DURATION`
    """
    length = parse_duration(text, longest=MAX_DURATION)
    if length % timedelta(seconds=1):
        raise ValueError(f"{text[:40]!r} is no duration of whole seconds")
    return length


def format_duration(seconds: float) -> str:
    """Format seconds in at most two units, rounded: `45 s`, `21 min`, `1 h 30 min`, `32 d 16 h`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return two_units(whole, 60, "min", 1, "s")
    if whole < 86_400:
        return two_units(round(whole / 60) * 60, 3600, "h", 60, "min")
    return two_units(round(whole / 3600) * 3600, 86_400, "d", 3600, "h")


def two_units(seconds: int, large: int, large_name: str, small: int, small_name: str) -> str:
    whole, rest = divmod(seconds, large)
    return f"{whole} {large_name}" + (f" {rest // small} {small_name}" if rest // small else "")


def duration_argument(text: str, zero: bool = False) -> timedelta:
    """Parse the value of a command-line option that is a duration.

    :param zero: accept a duration of zero
    :raises argparse.ArgumentTypeError: if the text is not an accepted duration
    """
    try:
        found = parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if not found and not zero:
        raise argparse.ArgumentTypeError("the duration must be longer than zero")
    return found


def seconds_argument(text: str) -> float:
    """Parse the value of a command-line option that is a number of seconds, or a duration such as `90s`.

    :raises argparse.ArgumentTypeError: if the text is neither
    """
    try:
        return parse_seconds(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
