"""Processor time of a running process with its descendants (Linux)."""

from __future__ import annotations

import os
import time
from pathlib import Path

_SCHEDULED = 2
"""Clock type CPUCLOCK_SCHED of the kernel: user plus system time in nanoseconds, as the scheduler accounts it."""


def exists(pid: int) -> bool:
    """Return True if the process with the id `pid` runs and its processor time can be read."""
    try:
        _clock(pid)
    except OSError:
        return False
    return True


def seconds(pid: int) -> float:
    """Return user plus system time of a process and its living descendants, in seconds.

    :raises OSError: if the process has ended
    """
    return _clock(pid) + sum(_clock_or_none(child) for child in _descendants(pid))


def _clock(pid: int) -> float:
    # clock_getcpuclockid(3): the complement of the process id, and the kind of clock in the lowest bits.
    return time.clock_gettime(~pid << 3 | _SCHEDULED)


def _clock_or_none(pid: int) -> float:
    try:
        return _clock(pid)
    except OSError:
        return 0.0


def _descendants(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                # The name in parentheses may contain spaces and any bytes; the parent is the second field after it.
                fields = Path("/proc", name, "stat").read_bytes().rpartition(b")")[2].split()
            except OSError:
                continue
            children.setdefault(int(fields[1]), []).append(int(name))
    found: list[int] = []
    waiting = [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found
