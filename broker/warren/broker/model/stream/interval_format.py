"""Times as streams have them: a number and a unit, `7D` (https://www.rabbitmq.com/docs/streams#retention)."""

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
"""Milliseconds: years, months, days, hours, minutes, seconds."""

_FORM: Final = re.compile(rb"([0-9]+)([YMDhms])\Z")
LONGEST: Final = 1 << 60
"""Milliseconds: longer than any clock will show, and short enough to be added to one."""


_LONGEST_TEXT: Final = 1000
"""Python refuses to read numbers of many thousand digits."""


def parse_interval_ms(text: bytes) -> int:
    """The time in milliseconds, at most `LONGEST`; 0 if it is none, or nought."""
    found = _FORM.match(text[:_LONGEST_TEXT])
    if found is None:
        return 0
    return min(int(found[1]) * UNITS[found[2]], LONGEST)


__all__ = ["LONGEST", "parse_interval_ms"]
