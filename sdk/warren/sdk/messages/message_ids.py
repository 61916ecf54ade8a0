"""Message ids: UUID version 7 (RFC 9562 section 5.7), so that ids sort by the time they were made."""

from __future__ import annotations

import os

DRAWN = 256
_LAST = [0, 0]
_DRAWN: list[str] = []
"""Random numbers of 64 bits as hexadecimal digits, not used yet."""
_VARIANT = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}
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
    if not _DRAWN:
        # One call to the kernel serves many ids.
        _DRAWN.extend(os.urandom(8 * DRAWN).hex(" ", 8).split())
    time, digits = f"{_LAST[0]:012x}", _DRAWN.pop()
    return f"{time[:8]}-{time[8:]}-7{_LAST[1]:03x}-{_VARIANT[digits[0]]}{digits[1:4]}-{digits[4:]}"


def milliseconds_of(identity: str) -> int | None:
    """The Unix time in milliseconds that a UUID of version 7 was made at; None if it is none."""
    if len(identity) != 36 or identity[14] != "7":
        return None
    try:
        return int(identity[:8] + identity[9:13], 16)
    except ValueError:
        return None


os.register_at_fork(after_in_child=_DRAWN.clear)
