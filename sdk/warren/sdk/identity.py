"""Message ids: UUID version 7 (RFC 9562 section 5.7), so that ids sort by the time they were made."""

from __future__ import annotations

import os

_LAST = [0, 0]
STEP_BACK_MS = 10_000
"""A clock that steps back further has been set anew; the ids follow it."""


def uuid7(milliseconds: int) -> str:
    """A new id for a Unix time in milliseconds; ids made in one process within one millisecond keep their order.

    The 12 bits of `rand_a` count within the millisecond (RFC 9562 section 6.2, method 1); when they are used up,
    or when the clock steps back a little, the time of the last id goes on.
    """
    if milliseconds > _LAST[0] or milliseconds < _LAST[0] - STEP_BACK_MS:
        _LAST[0], _LAST[1] = milliseconds, int.from_bytes(os.urandom(1))
    else:
        _LAST[1] += 1
        if _LAST[1] > 0xFFF:
            _LAST[0], _LAST[1] = _LAST[0] + 1, 0
    random = int.from_bytes(os.urandom(8)) & (2**62 - 1) | 1 << 63
    digits = f"{_LAST[0]:012x}7{_LAST[1]:03x}{random:016x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
