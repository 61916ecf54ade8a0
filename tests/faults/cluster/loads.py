"""Loads of a cluster run: numbered pieces of work, each of which must have its effect, or exactly one."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable

from tests.faults.cluster.figures import Durations
from warren.sdk import WarrenError


class Load:
    """Work of one kind.

    :param once: the effect of a number must happen once; otherwise at least once.
    """

    def __init__(self, name: str, start: Callable[[int], Awaitable[bool]], *, once: bool) -> None:
        """:param start: starts the work of a number; returns False if no effect is due, because of the answer."""
        self.name = name
        self.once = once
        self.effects: Counter[int] = Counter()
        self.refused = 0
        """Pieces of work whose start raised an error of the SDK: the outcome is unknown, and no effect is due."""
        self.starts = Durations()
        """Durations of starts: publishes with their confirms, or calls with their replies."""
        self.effect_waits = Durations()
        """Time from the start of the work to its first effect."""
        self.errors: Counter[str] = Counter()
        self._start = start
        self._due: set[int] = set()
        self._began: dict[int, float] = {}
        self._next = 0

    async def step(self) -> None:
        """Start the next piece of work."""
        self._next += 1
        number = self._next
        began = self._began[number] = time.monotonic()
        try:
            due = await self._start(number)
        except WarrenError as error:
            self.refused += 1
            self.errors[f"{type(error).__name__}: {error}"[:160]] += 1
        else:
            if due:
                self._due.add(number)
        self.starts.add(time.monotonic() - began)

    def follow(self, other: Load) -> None:
        """Take over what another load has started: the same start has effects of several kinds."""
        self._next, self._due, self._began = other._next, other._due, other._began
        self.refused = other.refused

    def effect(self, number: int) -> None:
        """Record an effect."""
        self.effects[number] += 1
        if self.effects[number] == 1:
            self.effect_waits.add(time.monotonic() - self._began.get(number, time.monotonic()))

    @property
    def started(self) -> int:
        """Pieces of work that were started."""
        return self._next

    @property
    def repeated(self) -> int:
        """Effects beyond the first of each number."""
        return sum(self.effects.values()) - len(self.effects)

    def missing(self) -> set[int]:
        """Return the numbers whose effect is due and has not happened."""
        return self._due - self.effects.keys()

    def faults(self) -> list[str]:
        """Return what is wrong at a moment when all effects should have happened."""
        found = []
        if missing := sorted(self.missing()):
            found.append(f"{self.name}: {len(missing)} lost: {missing[:10]}")
        doubled = sorted(number for number, count in self.effects.items() if count > 1)
        if self.once and doubled:
            found.append(f"{self.name}: {len(doubled)} have more than one effect: {doubled[:10]}")
        return found
