"""History of samples: values at every age are those of a list that keeps all of them."""

from __future__ import annotations

import gc
import sys

from hypothesis import given
from hypothesis import strategies as st

from warren.broker.management.statistics.collector import LENGTHS, QUEUE_COUNTERS
from warren.broker.management.statistics.series import COMPACT, LEVELS, TICK, Level, Series

STEPS = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 50), st.integers(0, 9)), min_size=1, max_size=200
)


@given(STEPS)
def test_samples_are_the_recorded_values(steps: list[tuple[int, int, int]]) -> None:
    series = Series(1, 1)
    tick, total = 1000, 0
    known: dict[int, tuple[int, int]] = {}
    for wait, gauge, added in steps:
        tick += wait + 1
        total += added
        series.record(tick, (gauge, total))
        known[tick] = (gauge, total)

    span = LEVELS[0].capacity - 1
    for column in (0, 1):
        for at, value in series.samples(column, tick, span * TICK, TICK):
            before = [known[each][column] for each in known if each <= at]
            if at > min(known) and at > tick - span:
                assert value == before[-1], (column, at)


def test_old_samples_thin_out_and_the_newest_stay() -> None:
    series = Series(0, 1)
    for tick in range(20_000):
        series.record(tick, (tick,))

    for age in (600, 3600, 28800, 86400):
        newest, *_, oldest = series.samples(0, 19_999, age, age / 10)
        assert newest == (19_999, 19_999)
        assert abs(oldest[0] - oldest[1]) <= LEVELS[-1].ticks


def test_a_counter_that_grew_much_is_cut_instead_of_failing() -> None:
    series = Series(0, 1)
    series.record(1, (0,))
    series.record(2, (2**40,))

    assert series.values == (2**40,)
    assert series.rate(0, 2) == (2**32 - 1) / TICK


def test_values_that_outgrow_16_bits_leave_the_samples_before_them_as_they_are() -> None:
    series = Series(1, 1)
    series.record(1, (65_535, 0))
    series.record(2, (65_536, 65_535))
    series.record(3, (7, 131_071))

    assert series.samples(0, 3, 15, TICK) == [(3, 7), (2, 65_536), (1, 65_535)]
    assert series.samples(1, 3, 15, TICK) == [(3, 131_071), (2, 65_535), (1, 0)]


def test_a_day_of_samples_of_10_000_queues_takes_less_than_100_mb() -> None:
    """Each of them takes 100 messages a second, and holds 60,000."""
    series = Series(len(LENGTHS), len(QUEUE_COUNTERS), COMPACT)
    for tick in range(1, 17_281, 40):
        counters = [int(tick * TICK * 100) + each for each in range(len(QUEUE_COUNTERS))]
        series.record(tick, [60_000 - tick % 7, 60_000 - tick % 5, tick % 3, *counters])

    assert 10_000 * bytes_of(series) < 70_000_000


def test_a_day_of_samples_takes_less_than_100_mb_if_no_value_fits_into_16_bits() -> None:
    series = Series(len(LENGTHS), len(QUEUE_COUNTERS), COMPACT)
    for tick in range(1, 17_281, 40):
        counters = [tick * 100_000 + each for each in range(len(QUEUE_COUNTERS))]
        series.record(tick, [140_000 + tick, 70_000 + tick % 5, 70_000 + tick % 3, *counters])

    assert 10_000 * bytes_of(series) < 95_000_000


def bytes_of(root: object) -> int:
    """Return the bytes of an object and all that it refers to, each once, without classes and the levels that all share."""
    known: set[int] = set()
    pending = [root]
    total = 0
    while pending:
        one = pending.pop()
        if id(one) in known or isinstance(one, (type, Level)) or one is COMPACT:
            continue
        known.add(id(one))
        total += sys.getsizeof(one)
        pending += gc.get_referents(one)
    return total
