"""Statistics of the writes to disk: sizes of group commits, durations of syncs, bytes written.

They are measured for each batch and each sync, never for each message.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable
from typing import Final

SYNC_SECONDS: Final = (
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
)
"""Upper bounds of the buckets of sync durations: from an SSD with a cache to a disk that hangs."""
BATCH_BYTES: Final = (256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216)
"""Upper bounds of the buckets of batch sizes."""


class Histogram:
    """Counts of values by bucket. One thread adds values; others may read them.

    :param bounds: upper bounds of the buckets, ascending; values above the last one are in a bucket of their own.
    """

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """Numbers of values in each bucket; the last one has no upper bound."""
        self.sum = 0.0

    def add(self, value: float) -> None:
        """Add a value. A value that equals an upper bound belongs to that bucket."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class WriteStatistics:
    """Statistics of the writer thread of one log, since the start of the broker."""

    def __init__(self) -> None:
        self.syncs = Histogram(SYNC_SECONDS)
        """Durations of the syncs of segment files of log and streams, in seconds."""
        self.batches = Histogram(BATCH_BYTES)
        """Sizes of the batches that were written, in bytes of their records."""
        self.written_bytes = 0
        """Bytes written to segment files, with preallocated zeros and what compaction copies."""

    def timed(self, sync: Callable[[int], object], handle: int) -> None:
        """Call the function that syncs a file, and add its duration.

        :param handle: the file.
        """
        began = time.perf_counter()
        sync(handle)
        self.syncs.add(time.perf_counter() - began)


__all__ = ["Histogram", "WriteStatistics"]
