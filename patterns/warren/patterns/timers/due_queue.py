"""Queue of timers by due time, with one entry per timer."""

from __future__ import annotations

import heapq
import itertools
from typing import NamedTuple

from warren.patterns.timers.rules import Timer

MIN_STALE = 64
"""Number of stale entries below which the heap is not rebuilt."""


class _Entry(NamedTuple):
    due_ms: int
    number: int
    timer: Timer


class DueQueue:
    """Timers by the time at which they are to be fired, each at most once.

    An entry that was replaced or removed stays in the heap as a stale one, and is passed over. The heap is rebuilt when
    more than half of it is stale, so that timers which are stored and cancelled again do not accumulate.
    """

    def __init__(self) -> None:
        self._heap: list[_Entry] = []
        self._entries: dict[str, _Entry] = {}
        self._numbers = itertools.count()

    def put(self, timer: Timer, due_ms: int) -> None:
        """Add a timer, in place of the one with the same name.

        :param due_ms: time at which the timer is to be fired, or its publish retried, in milliseconds since the epoch.
        """
        entry = self._entries[timer.name] = _Entry(due_ms, next(self._numbers), timer)
        heapq.heappush(self._heap, entry)
        self._drop_stale()

    def discard(self, name: str) -> None:
        """Remove the timer with this name, if there is one."""
        self._entries.pop(name, None)
        self._drop_stale()

    def clear(self) -> None:
        """Remove all timers."""
        self._heap.clear()
        self._entries.clear()

    @property
    def next_ms(self) -> int | None:
        """Time at which the first timer is due, in milliseconds since the epoch; None if there is no timer."""
        return self._heap[0].due_ms if self._heap else None

    def pop_due(self, now_ms: int, limit: int) -> list[Timer]:
        """Remove and return the timers that are due at `now_ms`, at most `limit`, in the order of their times."""
        due: list[Timer] = []
        while self._heap and self._heap[0].due_ms <= now_ms and len(due) < limit:
            entry = heapq.heappop(self._heap)
            del self._entries[entry.timer.name]
            due.append(entry.timer)
            self._drop_stale()
        return due

    def _drop_stale(self) -> None:
        """Remove stale entries from the top of the heap, so that its first entry is never stale."""
        if len(self._heap) > 2 * len(self._entries) + MIN_STALE:
            self._heap = sorted(self._entries.values())
        while self._heap and self._entries.get(self._heap[0].timer.name) is not self._heap[0]:
            heapq.heappop(self._heap)


__all__ = ["DueQueue"]
