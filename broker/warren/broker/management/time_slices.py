"""Running of long management work in slices, between which the event loop serves clients."""

from __future__ import annotations

import asyncio
import heapq
import time
import weakref
from collections.abc import Awaitable, Callable, Generator, Iterable
from typing import Any, Final, TypeVar

from warren.broker.store.log.switch_interval import SWITCH_INTERVAL

Result = TypeVar("Result")
Item = TypeVar("Item")

SLICE_SECONDS: Final = 0.0015
"""Seconds of management work in one iteration of the event loop. A durable publish takes several iterations, which may have
other work, too."""
SORTED_AT_ONCE: Final = 500
"""Items that are sorted in one step: they take less than a millisecond."""
MERGED_AT_ONCE: Final = 16_000
"""Items in order that are merged in one step: they take 2 ms."""
RUNS: Final = 4
"""Most lists in order that are merged in one step."""


class _Turns:
    """Turns of the management work of one event loop: an iteration of the loop has one slice of all of it."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        """Held by one call of `run_in_slices` from its slice to the next iteration of the loop."""
        self._slice_end = 0.0
        """Time at which the slice of this iteration ends, by `time.monotonic()`; 0 if it has none yet."""

    @property
    def is_over(self) -> bool:
        """True if this iteration has had its slice."""
        return bool(self._slice_end) and time.monotonic() >= self._slice_end

    def slice_end(self) -> float:
        """Begin the slice of this iteration unless it has begun, and return its end."""
        if not self._slice_end:
            self._slice_end = time.monotonic() + SLICE_SECONDS
            asyncio.get_running_loop().call_soon(self._end_iteration)
        return self._slice_end

    def _end_iteration(self) -> None:
        self._slice_end = 0.0


_TURNS: Final[weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Turns]] = weakref.WeakKeyDictionary()


async def run_in_slices(
    work: Generator[None, None, Result], between: Callable[[], Awaitable[None]] | None = None
) -> Result:
    """Run a generator, which yields after each small step, to its end, and return the value that it returns.

    After 1.5 ms of steps it lets the event loop run, so that clients are served meanwhile. Calls that run at once take
    turns: an iteration of the loop has 1.5 ms for all of them together, however many requests are answered at once, and
    also if a request makes its next call as soon as one has ended. The threads that write to disk, for which confirms
    wait, run more often than usual until it ends.

    :param between: function that is called and awaited between slices; None for none.
    """
    turns = _TURNS.setdefault(asyncio.get_running_loop(), _Turns())
    SWITCH_INTERVAL.shorten()
    try:
        while True:
            async with turns.lock:
                if turns.is_over:
                    await asyncio.sleep(0)
                end = turns.slice_end()
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


def run_at_once(work: Generator[None, None, Result]) -> Result:
    """Run a generator to its end without a pause, because there is little to do, and return the value that it returns."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: Result = done.value
            return result


def sort_in_steps(
    items: Iterable[Item], key: Callable[[Item], Any] | None = None, *, reverse: bool = False
) -> Generator[None, None, list[Item]]:
    """Return items in order, as `sorted` does, as the value of a generator that yields after each small step."""
    known = list(items)
    # Keys are computed once; `sort` then merges lists that are in order, in C.
    keys: list[Any] = []
    runs: list[list[int]] = []
    for start in range(0, len(known), SORTED_AT_ONCE):
        some = known[start : start + SORTED_AT_ONCE]
        keys.extend(some if key is None else map(key, some))
        runs.append(sorted(range(start, len(keys)), key=keys.__getitem__, reverse=reverse))
        yield
    while len(runs) > 1 and min(RUNS * len(runs[0]), len(known)) <= MERGED_AT_ONCE:
        merged = []
        for at in range(0, len(runs), RUNS):
            run = [index for part in runs[at : at + RUNS] for index in part]
            run.sort(key=keys.__getitem__, reverse=reverse)
            merged.append(run)
            yield
        runs = merged
    found: list[Item] = []
    if len(runs) == 1:
        for start in range(0, len(known), SORTED_AT_ONCE):
            found.extend(known[index] for index in runs[0][start : start + SORTED_AT_ONCE])
            yield
        return found
    for index in heapq.merge(*runs, key=keys.__getitem__, reverse=reverse):
        found.append(known[index])
        yield
    return found
