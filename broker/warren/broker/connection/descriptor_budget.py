"""Budget of file descriptors: how many connections a broker may have, so that its store and its operators never lack one.

https://www.rabbitmq.com/docs/networking#open-file-handle-limit
"""

from __future__ import annotations

import contextlib
import os
import resource
from typing import Final, NamedTuple

RESERVE: Final = 128
"""Descriptors that are kept from connections, on top of those that are open when the broker starts.

The log, the files of streams that are written to (32), reads, indexes, compaction and definitions take up to 64; control
connections 32; listeners, certificate files, the event loop and name resolution most of the rest.
"""
LEAST_SHARE: Final = 4
"""Divisor of the limit of descriptors: connections get at least this part of it, however small it is."""
NO_LIMIT: Final = 2**31 - 1
"""Number of descriptors that is assumed where the system sets no limit."""


class DescriptorBudget(NamedTuple):
    """Division of the file descriptors of this process."""

    limit: int
    """Descriptors that the system lets this process have open (RLIMIT_NOFILE)."""
    reserved: int
    """Descriptors for everything but connections."""

    @property
    def connections(self) -> int:
        """Largest number of connections: those that are open, and those that are being opened."""
        return self.limit - self.reserved


def descriptor_budget() -> DescriptorBudget:
    """Return the budget of this process, by its limit and the descriptors that are open now."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY or limit > NO_LIMIT:
        limit = NO_LIMIT
    reserved = open_descriptors() + RESERVE
    return DescriptorBudget(limit, min(reserved, limit - limit // LEAST_SHARE))


def open_descriptors() -> int:
    """Return the number of descriptors that this process has open; 0 where the system does not report it."""
    for folder in ("/proc/self/fd", "/dev/fd"):
        with contextlib.suppress(OSError):
            # One of them is the folder's own.
            return len(os.listdir(folder)) - 1
    return 0


def raise_descriptor_limit() -> None:
    """Raise the soft limit of open files to the hard limit: each connection is a file, and the soft limit is often 1,024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Some systems refuse the hard limit; the soft limit stays then.
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
