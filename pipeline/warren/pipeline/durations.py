"""Parsing and formatting of durations: `30m` on the command line, `1 h 30 min` in a report."""

from __future__ import annotations

import argparse
import re
from datetime import timedelta

SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
MAX_DURATION = timedelta(days=36_500)
"""Longest duration that is accepted. It is limited so that Python and Spark can add several durations to a time."""


def parse(text: str) -> timedelta:
    """Return the duration that a text such as `90s`, `30m`, `2h`, `1d` or `1h30m` names.

    :raises ValueError: if the text is not a duration, or if it is longer than `MAX_DURATION`
    """
    if not re.fullmatch(r"(\d+[smhd])+", text):
        raise ValueError(f"{text!r} is not a duration: write 90s, 30m, 2h or 1d")
    # Python refuses to parse integers of thousands of digits.
    parts = [(n.lstrip("0")[:20] or "0", unit) for n, unit in re.findall(r"(\d+)([smhd])", text)]
    seconds = sum(int(n) * SECONDS[unit] for n, unit in parts)
    if seconds > MAX_DURATION.total_seconds():
        raise ValueError(f"{text[:40]!r} is too long: the longest is {MAX_DURATION.days}d")
    return timedelta(seconds=seconds)


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
