"""Garbage collection of a broker process: searches for cycles stop all clients, so they are kept short and rare.

Messages form no cycles. Connections, channels and exceptions do, and there are few of them.
"""

from __future__ import annotations

import asyncio
import gc
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

Closed connections are such survivors: so many searches are those of some 5,000 connections, 1 to 2 MiB of garbage.
"""
CHEAP_GROWTH: Final = 32 * 1024 * 1024
"""Bytes of memory, beyond those at the start, up to which all objects are searched in about 30 ms."""


def collect_less_often() -> None:
    """Raise the thresholds of the garbage collector, and exclude the objects that exist now from collection.

    With the default thresholds, searching for cycles took a fifth of the broker's time.
    """
    gc.freeze()
    gc.set_threshold(YOUNG, YOUNG_COLLECTIONS, MIDDLE_COLLECTIONS)


def is_collection_due(resident: int, at_start: int, limit: int) -> bool:
    """Return whether all objects should be searched now, because that is quick, or memory is short.

    While memory is short, publishers are blocked anyway, and garbage may be the reason.

    :param resident: resident memory of the process in bytes.
    :param at_start: the same at its start.
    :param limit: bytes from which on memory is short.
    """
    return resident <= at_start + CHEAP_GROWTH or resident >= limit


async def collect_when_due(limit: int) -> None:
    """Search all objects for cycles every minute, or earlier if many survive, if that is due; end when cancelled.

    :param limit: bytes of resident memory from which on memory is short.
    """
    at_start = resident_memory()
    loop = asyncio.get_running_loop()
    collected_at = loop.time()
    while True:
        await asyncio.sleep(CHECK_INTERVAL)
        if loop.time() - collected_at < INTERVAL and gc.get_count()[2] < SURVIVORS:
            continue
        collected_at = loop.time()
        if is_collection_due(resident_memory(), at_start, limit):
            gc.collect()


__all__ = ["collect_less_often", "collect_when_due", "is_collection_due"]
