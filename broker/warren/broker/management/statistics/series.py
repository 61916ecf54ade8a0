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


NARROW: Final = 2**16 - 1
"""Largest number of rows that hold 16 bits; a larger one widens them to 32 bits."""


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


class Series:
    """Samples of some gauges (values of a moment, such as ready messages) and counters (which only grow).

    Each level has an array of rows: the row of number N (its tick divided by the ticks of the level) is at index N modulo
    the capacity. A sample that repeats the one before costs no memory before the next change, which fills the gap. Rows
    begin with 16 bits a value: most queues never need more, and a broker may have ten thousand of them.

    :param gauges: number of gauges; they come first in each sample.
    :param counters: number of counters.
    """

    __slots__ = ("_first", "_gauges", "_last", "_levels", "_repeated", "_rows", "_values", "_width")

    def __init__(self, gauges: int, counters: int, levels: tuple[Level, ...] = LEVELS) -> None:
        self._gauges = gauges
        self._width = gauges + counters
        self._levels = levels
        self.clear()

    def clear(self) -> None:
        """Forget all samples."""
        self._rows: list[array[int]] = []
        """Rows of each level: gauges, and counters as differences to the row before. Empty before the first sample."""
        self._first = self._last = -1
        """Ticks of the first and the last sample; -1 before the first."""
        self._repeated = False
        self._values = array("q", [0]) * self._width
        """Values of the last sample, not as differences. The list that was recorded would take four times as much."""

    @property
    def values(self) -> tuple[int, ...]:
        """Values of the last sample."""
        return tuple(self._values)

    @property
    def idle_since(self) -> int:
        """Tick of the sample since which no value has changed; -1 if one has changed in the last sample."""
        return self._last - 1 if self._repeated else -1

    def adds_nothing(self, values: Sequence[int]) -> bool:
        """Return True if a sample can be left out: it repeats the last one, which repeats the one before."""
        return self._repeated and self._values == array("q", values)

    def record(self, tick: int, values: Sequence[int]) -> None:
        """Add the sample of a tick. It may be left out if nothing has changed since the last one."""
        now, before = array("q", values), self._values
        if not self._rows:
            # Repeated, not from bytes: that would reserve memory for more.
            self._rows = [array("H", [0]) * (self._width * level.capacity) for level in self._levels]
            # The first sample is preceded by nothing: its counters have not grown.
            self._first, self._last, before = tick, -1, now
        self._repeated = now == self._values
        gauges = self._gauges
        row = [min(max(value, 0), MOST) for value in now[:gauges]]
        row += [
            min(max(value - known, 0), MOST)
            for value, known in zip(now[gauges:], before[gauges:], strict=True)
        ]
        for at, level in enumerate(self._levels):
            self._record(at, tick // level.ticks, row)
        self._values = now
        self._last = max(self._last, tick)

    def _record(self, at: int, number: int, row: list[int]) -> None:
        """Add a row to a level, or add to the row that the last sample is in."""
        width, gauges, capacity = self._width, self._gauges, self._levels[at].capacity
        last = self._last // self._levels[at].ticks if self._last >= 0 else number - 1
        if number <= last:
            # Still the same row: it shows the newest values.
            start = last % capacity * width
            held = self._rows[at][start + gauges : start + width]
            grown = [min(value + known, MOST) for value, known in zip(row[gauges:], held, strict=True)]
            self._write(at, last, row[:gauges] + grown)
            return
        if number > last + 1:
            idle = [min(max(value, 0), MOST) for value in self._values[:gauges]] + [0] * (width - gauges)
            for missed in range(max(last + 1, number - capacity), number):
                self._write(at, missed, idle)
        self._write(at, number, row)

    def _write(self, at: int, number: int, row: list[int]) -> None:
        rows = self._rows[at]
        if rows.typecode == "H" and max(row) > NARROW:
            rows = self._rows[at] = array("I", rows.tolist())
        start = number % self._levels[at].capacity * self._width
        rows[start : start + self._width] = array(rows.typecode, row)

    def _oldest(self, level: Level) -> int:
        """Return the number of the oldest row of a level that holds a sample."""
        return max(self._first // level.ticks, self._last // level.ticks - level.capacity + 1)

    def rate(self, column: int, tick: int) -> float:
        """Return the change of a value a second, between the two last samples before or at a tick."""
        if not self._rows:
            return 0.0
        rows, level = self._rows[0], self._levels[0]
        last = self._last // level.ticks
        if last < tick - 1 or last == self._oldest(level):
            return 0.0
        now = rows[last % level.capacity * self._width + column]
        if column >= self._gauges:
            return now / TICK
        before = rows[(last - 1) % level.capacity * self._width + column]
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
        value = self._values[column]
        wanted = [
            tick - round(ago * step / TICK)
            for ago in range(max(int(min(age, level.seconds) // max(step, TICK)), 1))
        ]
        if not self._rows:
            return [(one, value) for one in wanted]
        rows, oldest = self._rows[at], self._oldest(level)
        found: list[tuple[int, int]] = []
        number, known = self._last // level.ticks, value
        for one in wanted:
            target = one // level.ticks
            while number > target and number >= oldest:
                if column >= self._gauges:
                    known -= rows[number % level.capacity * self._width + column]
                number -= 1
                if column < self._gauges:
                    held = number >= oldest
                    known = rows[number % level.capacity * self._width + column] if held else 0
            found.append((one, known))
        return found
