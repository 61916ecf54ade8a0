"""History of samples: values at every age are those of a list that keeps all of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from warren.broker.management.statistics.series import COMPACT, LEVELS, TICK, Series

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


def test_the_samples_of_a_busy_queue_need_less_than_10_kb() -> None:
    series = Series(3, 9, COMPACT)
    for tick in range(400):
        series.record(tick, (tick,) * 12)

    assert sum(len(ring.rows) * ring.rows.itemsize for ring in series._rings) < 9_000
