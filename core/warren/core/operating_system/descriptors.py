"""File descriptors of this process: its limit of them, and those that are open."""

from __future__ import annotations

import contextlib
import os
from typing import Any, Final

from warren.core.operating_system.portable_switch import PORTABLE, present

NO_LIMIT: Final = 2**31 - 1
"""Number of descriptors that is assumed where the system sets no limit."""
_FOLDERS: Final = ("/proc/self/fd", "/dev/fd")
_getrlimit: Final[Any] = present("resource", "getrlimit")
_setrlimit: Final[Any] = present("resource", "setrlimit")
_NOFILE: Final[Any] = present("resource", "RLIMIT_NOFILE")
_INFINITY: Final[Any] = present("resource", "RLIM_INFINITY")


def open_descriptors() -> list[int]:
    """Return the open descriptors, with that of the list itself; an empty list where the system does not report them."""
    if not PORTABLE:
        for folder in _FOLDERS:
            with contextlib.suppress(OSError):
                return [int(name) for name in os.listdir(folder)]
    return []


def count_open_descriptors() -> int:
    """Return the number of open descriptors; 0 where the system does not report it."""
    # One of them is the list's own.
    return max(0, len(open_descriptors()) - 1)


def descriptor_limit() -> int:
    """Return how many descriptors the system lets this process have open (RLIMIT_NOFILE); NO_LIMIT if it sets none."""
    if _getrlimit is None:
        return NO_LIMIT
    limit: int = _getrlimit(_NOFILE)[0]
    return NO_LIMIT if limit == _INFINITY or limit > NO_LIMIT else limit


def raise_descriptor_limit() -> None:
    """Raise the soft limit of open files to the hard limit: each connection is a file, and the soft limit is often 1,024."""
    if _setrlimit is not None:
        _, hard = _getrlimit(_NOFILE)
        # Some systems refuse the hard limit; the soft limit stays then.
        with contextlib.suppress(ValueError, OSError):
            _setrlimit(_NOFILE, (hard, hard))


__all__ = [
    "NO_LIMIT",
    "count_open_descriptors",
    "descriptor_limit",
    "open_descriptors",
    "raise_descriptor_limit",
]
