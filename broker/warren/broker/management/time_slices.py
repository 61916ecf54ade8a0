"""Running of long management work in slices, between which the event loop serves clients."""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Awaitable, Callable, Generator, Iterable
from typing import Any, Final, TypeVar

from warren.broker.model.bulk_work import SLICE_SECONDS, SWITCH_INTERVAL

Result = TypeVar("Result")

SORTED_AT_ONCE: Final = 500
"""Items that are sorted in one step: they take less than a millisecond."""


async def run_in_slices(
    work: Generator[None, None, Result], between: Callable[[], Awaitable[None]] | None = None
) -> Result:
    """Run a generator, which yields after each small step, to its end, and return the value that it returns.

    After 5 ms of steps it lets the event loop run, so that clients are served meanwhile. The threads that write to disk,
    for which confirms wait, run more often than usual until it ends.

    :param between: function that is called and awaited between slices; None for none.
    """
    SWITCH_INTERVAL.shorten()
    try:
        while True:
            end = time.monotonic() + SLICE_SECONDS
            try:
                next(work)
                while time.monotonic() < end:
                    next(work)
            except StopIteration as done:
                result: Result = done.value
                return result
            await asyncio.sleep(0)
            if between is not None:
                await between()
    finally:
        SWITCH_INTERVAL.restore()


def sort_in_steps(items: Iterable[tuple[Any, ...]]) -> Generator[None, None, list[tuple[Any, ...]]]:
    """Return items in ascending order, as the value of a generator that yields after each small step."""
    unsorted = list(items)
    parts = []
    for start in range(0, len(unsorted), SORTED_AT_ONCE):
        parts.append(sorted(unsorted[start : start + SORTED_AT_ONCE]))
        yield
    if len(parts) < 2:
        return parts[0] if parts else []
    found = []
    for item in heapq.merge(*parts):
        found.append(item)
        yield
    return found
