"""Rules of the backlog advice, and forecasts, without Spark."""

from __future__ import annotations

import random
from dataclasses import replace
from statistics import fmean

import pytest

from warren.pipeline.jobs.backlog_advice import Load, measures
from warren.pipeline.jobs.flow.page import forecast_words
from warren.pipeline.jobs.flow.trend import Growth, forecast, growth, student_t_quantile

BUSY = Load(
    ready=5000,
    growth=(20.0, 15.0, 25.0),
    arriving=120.0,
    leaving=100.0,
    redelivered=0.0,
    consumers=4,
    prefetch=50,
    window_used=0.98,
    full=0.97,
    idle=0.0,
    handling=0.04,
    acknowledged_together=1.0,
)


def kinds(load: Load) -> list[str]:
    return [measure.kind for measure in measures(load)]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, ["add_consumers"]),
        ({"ready": 50, "growth": (0.1, -1.0, 1.2)}, ["nothing"]),
        ({"growth": (-5.0, -8.0, -2.0)}, ["nothing"]),
        ({"growth": None, "ready": 10}, ["nothing"]),
        ({"growth": (0.1, -1.0, 1.2)}, ["add_consumers"]),
        ({"consumers": 0, "leaving": 0.0, "prefetch": None, "idle": None}, ["consume"]),
        ({"idle": 0.4, "prefetch": 1}, ["raise_prefetch"]),
        ({"idle": 0.4, "prefetch": 5000}, ["add_consumers"]),
        ({"idle": 0.4, "prefetch": 0}, ["add_consumers"]),
        ({"idle": None, "prefetch": 1}, ["raise_prefetch", "add_consumers"]),
        ({"idle": None, "prefetch": 300}, ["add_consumers"]),
        ({"redelivered": 0.5}, ["handle_what_fails", "add_consumers"]),
        ({"handling": 0.0001}, ["acknowledge_in_multiples", "add_consumers"]),
        ({"handling": 0.0001, "acknowledged_together": 30.0}, ["add_consumers"]),
        ({"fills_in": 120.0}, ["slow_the_publishers", "add_consumers"]),
        ({"fills_in": 86_400.0}, ["add_consumers"]),
        ({"arriving": 900.0}, ["add_consumers", "slow_the_publishers"]),
    ],
)
def test_measures_for_each_load(change: dict[str, object], expected: list[str]) -> None:
    assert kinds(replace(BUSY, **change)) == expected  # type: ignore[arg-type]


def test_a_measure_contains_figures() -> None:
    (add,) = measures(BUSY)
    assert (
        "100.0 of 120.0 messages per second are handled. 5 consumers like these would keep up (now 4)"
        in add.words
    )
    (prefetch,) = measures(replace(BUSY, idle=0.75, prefetch=10))
    assert "for 75% of their time" in prefetch.words
    assert "to 40 or more" in prefetch.words, "the way takes three times as long as the work"


def test_the_advised_prefetch_removes_idle_time() -> None:
    """One message at a time: handling takes h, then transit r. The advised window must hold the messages that arrive
    meanwhile."""
    for handling, way in ((0.01, 0.03), (0.002, 0.05), (0.01, 0.002)):
        idle = way / (handling + way)
        (first, *_) = measures(replace(BUSY, idle=idle, prefetch=1))
        advised = int(first.words.split(" to ")[-1].split(" or ")[0].replace(",", ""))
        assert advised * handling >= way + handling - 1e-9


def test_the_interval_contains_the_true_growth_in_95_of_100_cases() -> None:
    """Of a thousand backlogs with known growth, about 95 in 100 intervals contain it."""
    draw = random.Random(5)
    inside = 0
    for _ in range(1000):
        level, levels = 0.0, [0.0]
        for _ in range(20):
            level += draw.gauss(3.0, 10.0)
            levels.append(level)
        found = growth(levels, 2.0)
        assert found is not None
        inside += found.low <= 1.5 <= found.high
    assert 925 <= inside <= 985


def test_correlated_changes_widen_the_interval() -> None:
    """The same changes, mixed and in two blocks: those in blocks are correlated and carry less information."""
    mixed, blocks = [8.0, 0.0] * 15, [8.0] * 15 + [0.0] * 15

    def width(changes: list[float]) -> float:
        levels = [sum(changes[:at]) for at in range(len(changes) + 1)]
        found = growth(levels, 1.0)
        assert found is not None
        assert found.slope == pytest.approx(fmean(changes))
        return found.high - found.low

    assert width(blocks) > 3 * width(mixed)


def test_quantiles_of_student_s_t() -> None:
    """Values from textbook tables."""
    table = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 10: 2.228, 30: 2.042, 1000: 1.962}
    for freedom, quantile in table.items():
        assert student_t_quantile(freedom) == pytest.approx(quantile, rel=0.01)


def test_forecasts_with_and_without_a_time() -> None:
    grows, still, shrinks = Growth(10, 8, 12.5), Growth(1, -2, 4), Growth(-3, -5, -1)
    found = forecast(1000, 11_000, "messages", grows)
    assert (found.full_in, found.earliest, found.latest) == (1000, 800, 1250)
    assert forecast_words(found) == (
        "full in 16 min 40 s, 13 min 20 s at the earliest, 20 min 50 s at the latest; it holds 1,000 of 11,000 messages."
    )
    found = forecast(1000, 11_000, "messages", still)
    assert (found.full_in, found.earliest, found.latest) == (None, 2500, None)
    assert "There is no significant trend" in forecast_words(found)
    found = forecast(1000, 11_000, "messages", shrinks)
    assert (found.full_in, found.earliest, found.latest) == (None, None, None)
    assert "will not be full: it does not grow" in forecast_words(found)
    assert "it is full" in forecast_words(forecast(11_000, 11_000, "messages", still))
    assert forecast(1000, 21_000, "bytes", grows, size=200).full_in == 10
    assert forecast(1000, 11_000, "messages", None).full_in is None


def test_few_steps_give_no_trend() -> None:
    assert growth([1, 2, 3, 4], 1.0) is None
    flat = growth([7, 7, 7, 7, 7], 1.0)
    assert flat == Growth(0, 0, 0)
