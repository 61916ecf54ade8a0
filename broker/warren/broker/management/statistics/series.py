"""History of a few numbers: samples of the last ten minutes, hour, eight hours and day, in steps of rising length.

RabbitMQ keeps the same history (https://www.rabbitmq.com/docs/management#sample-retention).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Final, NamedTuple

TICK: Final = 5.0
"""Seconds between two samples."""
MOST: Final = 2**32 - 1
"""Largest number that a sample holds; a larger one is cut. Counters are held as differences to the sample before."""


class Level(NamedTuple):
    """Samples at one distance.

    :ivar ticks: distance of two samples in ticks.
    :ivar capacity: number of samples that are kept.
    """

    ticks: int
    capacity: int

    @property
    def seconds(self) -> float:
        """Time that the samples cover, in seconds."""
        return self.ticks * TICK * (self.capacity - 1)


LEVELS: Final = (Level(1, 121), Level(12, 61), Level(120, 49), Level(360, 49))
"""Samples of ten minutes, an hour, eight hours and a day."""
COMPACT: Final = (Level(1, 121), Level(24, 31), Level(720, 25))
"""Samples of ten minutes, an hour and a day with fewer of the older ones: for queues, of which there may be very many."""
NEWEST: Final = LEVELS[:1]
"""Samples of ten minutes only."""


class _Ring:
    """Samples at one level: an array of rows, that of tick number T at index T / ticks, modulo the capacity."""

    __slots__ = ("base", "filled", "last", "rows")

    def __init__(self) -> None:
        self.rows: array[int] = array("I")
        self.last = -1
        """Number of the last row: its tick divided by the ticks of the level; -1 before the first."""
        self.filled = 0
        """Number of rows that hold samples."""
        self.base: Sequence[int] = ()
        """Values of the last row, not as differences."""


class Series:
    """Samples of some gauges (values of a moment, such as ready messages) and counters (which only grow).

    A sample that repeats the one before costs no memory before the next change, which fills the gap.

    :param gauges: number of gauges; they come first in each sample.
    :param counters: number of counters.
    """

    __slots__ = ("_gauges", "_levels", "_repeated", "_rings", "_width", "values")

    def __init__(self, gauges: int, counters: int, levels: tuple[Level, ...] = LEVELS) -> None:
        self._gauges = gauges
        self._width = gauges + counters
        self._levels = levels
        self._rings: tuple[_Ring, ...] = ()
        self._repeated = False
        self.values: Sequence[int] = (0,) * self._width
        """Values of the last sample."""

    @property
    def is_settled(self) -> bool:
        """True if the last sample repeats the one before: a further equal one adds nothing."""
        return self._repeated

    def record(self, tick: int, values: Sequence[int]) -> None:
        """Add the sample of a tick. It may be left out if nothing has changed since the last one."""
        if not self._rings:
            self._rings = tuple(_Ring() for _ in self._levels)
        self._repeated = values == self.values
        for level, ring in zip(self._levels, self._rings, strict=True):
            self._record(level, ring, tick // level.ticks, values)
        self.values = values

    def _record(self, level: Level, ring: _Ring, number: int, values: Sequence[int]) -> None:
        width, gauges = self._width, self._gauges
        if not ring.rows:
            ring.rows = array("I", bytes(4 * width * level.capacity))
        if ring.last < 0:
            ring.base, ring.last, ring.filled = values, number - 1, 0
        if number <= ring.last:
            # Still the same row: it shows the newest values.
            self._write(level, ring, ring.last, self._difference(ring, values), add=True)
            ring.base = values
            return
        idle = (*ring.base[:gauges], *([0] * (width - gauges)))
        for missed in range(max(ring.last + 1, number - level.capacity), number):
            self._write(level, ring, missed, idle)
        ring.filled = min(ring.filled + number - ring.last, level.capacity)
        self._write(level, ring, number, self._difference(ring, values))
        ring.last, ring.base = number, values

    def _difference(self, ring: _Ring, values: Sequence[int]) -> list[int]:
        gauges = self._gauges
        row = [min(max(value, 0), MOST) for value in values[:gauges]]
        row += [
            min(max(now - before, 0), MOST)
            for now, before in zip(values[gauges:], ring.base[gauges:], strict=True)
        ]
        return row

    def _write(
        self, level: Level, ring: _Ring, number: int, row: Sequence[int], *, add: bool = False
    ) -> None:
        start = number % level.capacity * self._width
        if add:
            for at in range(self._gauges, self._width):
                row = [*row[:at], min(row[at] + ring.rows[start + at], MOST), *row[at + 1 :]]
        ring.rows[start : start + self._width] = array("I", [min(value, MOST) for value in row])

    def rate(self, column: int, tick: int) -> float:
        """Return the change of a value a second, between the two last samples before or at a tick."""
        if not self._rings:
            return 0.0
        ring, level = self._rings[0], self._levels[0]
        if ring.last < tick - 1 or ring.filled < 2:
            return 0.0
        now = ring.rows[ring.last % level.capacity * self._width + column]
        if column >= self._gauges:
            return now / TICK
        before = ring.rows[(ring.last - 1) % level.capacity * self._width + column]
        return (now - before) / TICK

    def samples(self, column: int, tick: int, age: float, step: float) -> list[tuple[int, int]]:
        """Return samples of a value as (tick, value), newest first.

        :param tick: the present tick.
        :param age: seconds back from now that the samples cover.
        :param step: seconds between two of them.
        """
        at = min(
            (index for index, level in enumerate(self._levels) if level.seconds >= age),
            default=len(self._levels) - 1,
        )
        level = self._levels[at]
        value = self.values[column]
        wanted = [
            tick - round(ago * step / TICK)
            for ago in range(max(int(min(age, level.seconds) // max(step, TICK)), 1))
        ]
        if not self._rings:
            return [(one, value) for one in wanted]
        ring = self._rings[at]
        found: list[tuple[int, int]] = []
        number, known = ring.last, value
        for one in wanted:
            target = one // level.ticks
            while number > target and number > ring.last - ring.filled:
                row = number % level.capacity * self._width
                if column >= self._gauges:
                    known -= ring.rows[row + column]
                number -= 1
                if column < self._gauges:
                    held = number > ring.last - ring.filled
                    known = ring.rows[number % level.capacity * self._width + column] if held else 0
            found.append((one, known))
        return found
