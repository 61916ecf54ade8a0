"""Durations as people write and read them: `30m` on the command line, `1 h 30 min` in a report."""

from __future__ import annotations

import argparse
import re
from datetime import timedelta

SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
LONGEST = timedelta(days=36_500)
"""So that a time and several of them are still within what Python and Spark can reckon with."""


def parse(text: str) -> timedelta:
    """`90s`, `30m`, `2h`, `1d`, or several at once: `1h30m`.

    :raises ValueError: for anything else, for nothing at all, and for more than `LONGEST`
    """
    if not re.fullmatch(r"(\d+[smhd])+", text):
        raise ValueError(f"{text!r} is no duration: write 90s, 30m, 2h or 1d")
    # Python refuses to read integers of thousands of digits.
    told = [(n.lstrip("0")[:20] or "0", unit) for n, unit in re.findall(r"(\d+)([smhd])", text)]
    seconds = sum(int(n) * SECONDS[unit] for n, unit in told)
    if seconds > LONGEST.total_seconds():
        raise ValueError(f"{text[:40]!r} is too long: the longest is {LONGEST.days}d")
    return timedelta(seconds=seconds)


def words(seconds: float) -> str:
    """At most two units, rounded: `45 s`, `21 min`, `1 h 30 min`, `32 d 16 h`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return two(whole, 60, "min", 1, "s")
    if whole < 86_400:
        return two(round(whole / 60) * 60, 3600, "h", 60, "min")
    return two(round(whole / 3600) * 3600, 86_400, "d", 3600, "h")


def two(seconds: int, large: int, large_name: str, small: int, small_name: str) -> str:
    whole, rest = divmod(seconds, large)
    return f"{whole} {large_name}" + (f" {rest // small} {small_name}" if rest // small else "")


def argument(text: str, zero: bool = False) -> timedelta:
    """A duration of a command's option.

    :param zero: no time at all is one too
    :raises argparse.ArgumentTypeError: for what is none
    """
    try:
        found = parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if not found and not zero:
        raise argparse.ArgumentTypeError("it must be longer than nothing")
    return found
