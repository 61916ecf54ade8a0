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
_DIGITS: Final = 12
"""A longer number is of no time that a clock will show."""


def interval_ms(text: bytes) -> int:
    """The time in milliseconds; 0 if it is none, or nought."""
    found = _FORM.match(text)
    if found is None or len(found[1]) > _DIGITS:
        return 0
    return int(found[1]) * UNITS[found[2]]


__all__ = ["interval_ms"]
