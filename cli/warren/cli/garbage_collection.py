"""Garbage collection of a broker process: searches for cycles stop all clients, so they are kept short and rare.

Messages form no cycles. Connections, channels and exceptions do, and there are few of them.
"""

from __future__ import annotations

import asyncio
import gc
import time
from typing import Final

from warren.core.operating_system.memory import resident_memory

YOUNG: Final = 8_000
"""New objects, less those that are gone, after which they are searched."""
YOUNG_COLLECTIONS: Final = 2
"""Searches of new objects after which the survivors are searched once more: at most 24,000 objects, about 5 ms."""
MIDDLE_COLLECTIONS: Final = 3000
"""Further searches after which all objects are searched: with a million messages that takes 0.7 s."""
INTERVAL: Final = 60.0
"""Seconds between two times at which all objects are searched if that is due."""
CHECK_INTERVAL: Final = 1.0
"""Seconds between two looks at the number of surviving objects."""
SURVIVORS: Final = 10
"""Searches of survivors after which all objects are searched without waiting for the interval.

Connections that are open during such a search are survivors, and garbage once they are closed.
"""
QUICK: Final = 0.03
"""Seconds of processor time that a search of all objects may be expected to take while memory is not short."""
SECONDS_PER_BYTE: Final = 0.03 / (32 * 1024 * 1024)
"""Seconds that memory which was allocated since a search adds to the next one at most: a millisecond for each MiB."""


def collect_less_often() -> None:
    """Raise the thresholds of the garbage collector, and exclude the objects that exist now from collection.

    With the default thresholds, searching for cycles took a fifth of the broker's time.
    """
    gc.freeze()
    gc.set_threshold(YOUNG, YOUNG_COLLECTIONS, MIDDLE_COLLECTIONS)


class FullSearches:
    """Searches of all objects for cycles: done while they are quick, or while memory is short.

    While memory is short, publishers are blocked anyway, and garbage may be the reason.

    :param at_start: resident memory of the process in bytes at its start, when there is nothing to search.
    :param limit: bytes of resident memory from which on memory is short.
    """

    def __init__(self, at_start: int, limit: int) -> None:
        self.limit = limit
        self.at_start = at_start
        self.after_last = at_start
        """Resident memory in bytes after the last search."""
        self.last_seconds = 0.0
        """Seconds of processor time that this search took."""

    def expected_seconds(self, resident: int) -> float:
        """Return the seconds that a search is expected to take at most.

        :param resident: resident memory of the process in bytes.
        """
        since_start = (resident - self.at_start) * SECONDS_PER_BYTE
        since_last = (resident - self.after_last) * SECONDS_PER_BYTE
        return min(since_start, self.last_seconds + max(since_last, 0.0))

    def is_due(self, resident: int) -> bool:
        """Return whether all objects should be searched now, because that is quick, or memory is short.

        :param resident: resident memory of the process in bytes.
        """
        return resident >= self.limit or self.expected_seconds(resident) <= QUICK

    def run(self) -> None:
        """Search all objects, and note how long it takes."""
        begun = time.thread_time()
        gc.collect()
        self.note(resident_memory(), time.thread_time() - begun)

    def note(self, resident: int, seconds: float) -> None:
        """Note the outcome of a search.

        :param resident: resident memory of the process in bytes after it.
        :param seconds: processor time that it took.
        """
        self.after_last = resident
        self.last_seconds = seconds


async def collect_when_due(limit: int) -> None:
    """Search all objects for cycles every minute, or earlier if many survive, if that is due; end when cancelled.

    :param limit: bytes of resident memory from which on memory is short.
    """
    searches = FullSearches(resident_memory(), limit)
    loop = asyncio.get_running_loop()
    searched_at = loop.time()
    while True:
        await asyncio.sleep(CHECK_INTERVAL)
        if loop.time() - searched_at < INTERVAL and gc.get_count()[2] < SURVIVORS:
            continue
        searched_at = loop.time()
        if searches.is_due(resident_memory()):
            searches.run()


__all__ = ["FullSearches", "collect_less_often", "collect_when_due"]
