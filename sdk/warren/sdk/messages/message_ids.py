"""Message ids: UUID version 7 (RFC 9562 section 5.7), which sort by time of creation."""

from __future__ import annotations

import os

from warren.core.operating_system.processes import after_fork

RANDOM_BATCH = 256
"""Number of random numbers that are fetched from the operating system at once."""
_LAST = [0, 0]
"""Unix time in milliseconds of the last id, and its counter within that millisecond."""
_RANDOM: list[str] = []
"""Unused random numbers of 64 bits, as hexadecimal digits."""
_VARIANT = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}
STEP_BACK_MS = 10_000
"""Largest step back of the system clock, in milliseconds, that new ids ignore: they continue from the time of the last
id, and so stay sorted. After a larger step new ids take the time of the clock."""


def uuid7(milliseconds: int) -> str:
    """Return a new id for a Unix time in milliseconds. Ids of one process keep their order within a millisecond.

    The 12 bits of `rand_a` count within the millisecond (RFC 9562 section 6.2, method 1). When they are used up, or when
    the clock goes back a little, the time of the last id is incremented instead.
    """
    if milliseconds > _LAST[0] or milliseconds < _LAST[0] - STEP_BACK_MS:
        _LAST[0], _LAST[1] = milliseconds, int.from_bytes(os.urandom(1))
    else:
        _LAST[1] += 1
        if _LAST[1] > 0xFFF:
            _LAST[0], _LAST[1] = _LAST[0] + 1, 0
    if not _RANDOM:
        _RANDOM.extend(os.urandom(8 * RANDOM_BATCH).hex(" ", 8).split())
    time, digits = f"{_LAST[0]:012x}", _RANDOM.pop()
    return f"{time[:8]}-{time[8:]}-7{_LAST[1]:03x}-{_VARIANT[digits[0]]}{digits[1:4]}-{digits[4:]}"


def milliseconds_of(identity: str) -> int | None:
    """Return the Unix time in milliseconds of a UUID version 7; None for any other text."""
    if len(identity) != 36 or identity[14] != "7":
        return None
    try:
        return int(identity[:8] + identity[9:13], 16)
    except ValueError:
        return None


after_fork(_RANDOM.clear)
