"""Interval format of streams: a number and a unit, as in `7D` (https://www.rabbitmq.com/docs/streams#retention)."""

from __future__ import annotations

import re
from typing import Final

UNITS: Final = {
    b"Y": 365 * 86_400_000,
    b"M": 30 * 86_400_000,
    b"D": 86_400_000,
    b"h": 3_600_000,
    b"m": 60_000,
    b"s": 1000,
}
"""Milliseconds of each unit letter: year, month, day, hour, minute, second."""

_FORM: Final = re.compile(rb"([0-9]+)([YMDhms])\Z")
LONGEST: Final = 1 << 60
"""Longest interval in milliseconds. The sum of it and the current time fits 64 bits."""

_LONGEST_TEXT: Final = 1000
"""Characters of an interval that are parsed at most: Python refuses to convert numbers of many thousand digits."""


def parse_interval_ms(text: bytes) -> int:
    """Return the milliseconds of an interval such as `7D`; 0 if the text is no interval.

    An interval above `LONGEST` (2^60 ms) counts as `LONGEST`, so that its sum with the current time fits 64 bits.
    """
    found = _FORM.match(text[:_LONGEST_TEXT])
    if found is None:
        return 0
    return min(int(found[1]) * UNITS[found[2]], LONGEST)


__all__ = ["LONGEST", "parse_interval_ms"]
