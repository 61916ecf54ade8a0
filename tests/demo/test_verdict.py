"""Verdict of the demo: wrong and lost orders, and orders that are not judged."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from warren.demo.orders import Order
from warren.demo.replay import ReplayPlan, ReplayRecord
from warren.demo.verdict import judge

PLACED = datetime(2018, 1, 1, tzinfo=UTC)
PLAN = ReplayPlan(span=40.0, speed=225.0, timeout=timedelta(minutes=30))
"""Schedule in which thirty minutes take eight seconds."""


def order(order_id: str, minutes: float | None) -> Order:
    return Order(order_id, PLACED, None if minutes is None else PLACED + timedelta(minutes=minutes))


ORDERS = [order("early", 10), order("late", 100), order("never", None)]
RIGHT = {"early": "paid_in_time", "late": "paid_late", "never": "cancelled"}


def record(**placed: float) -> ReplayRecord:
    return ReplayRecord(placed=placed or {"early": 0.0, "late": 1.0, "never": 2.0})


def test_expected_outcomes_are_right() -> None:
    verdict = judge(ORDERS, RIGHT, PLAN, record())
    assert verdict.passed
    assert (verdict.right, verdict.unjudged, verdict.wrong) == (3, 0, {})
    assert verdict.outcomes == {"paid_in_time": 1, "paid_late": 1, "cancelled": 1}


@pytest.mark.parametrize(
    ("order_id", "outcome", "finding"),
    [
        ("early", "paid_late", "is paid_late, must be paid_in_time"),
        ("early", "cancelled", "is cancelled"),
        ("late", "paid_in_time", "is paid_in_time, must be paid_late"),
        ("never", "paid_in_time", "is paid_in_time"),
        ("early", "paid_and_cancelled", "is paid_and_cancelled"),
        ("late", "open", "lost"),
    ],
)
def test_one_wrong_order_is_found_and_named(order_id: str, outcome: str, finding: str) -> None:
    verdict = judge(ORDERS, {**RIGHT, order_id: outcome}, PLAN, record())
    assert verdict.wrong == {order_id: finding}
    assert not verdict.passed


def test_a_lost_order_and_an_unknown_one_are_found() -> None:
    verdict = judge(
        ORDERS, {"early": "paid_in_time", "never": "cancelled", "ghost": "cancelled"}, PLAN, record()
    )
    assert verdict.wrong == {"late": "lost", "ghost": "was never placed"}


def test_payments_within_a_minute_of_the_timeout_are_not_judged_but_need_an_outcome() -> None:
    near = [order("a", 29), order("b", 30), order("c", 31), order("d", 28.9)]
    outcomes = {"a": "paid_late", "b": "paid_in_time", "c": "paid_in_time", "d": "paid_in_time"}
    verdict = judge(near, outcomes, PLAN, ReplayRecord(placed=dict.fromkeys("abcd", 0.0)))
    assert (verdict.near_timeout, verdict.right, verdict.wrong) == (3, 1, {})
    lost = judge(near, {**outcomes, "b": "open"}, PLAN, ReplayRecord(placed=dict.fromkeys("abcd", 0.0)))
    assert lost.wrong == {"b": "lost"}


def test_a_payment_in_time_that_is_handled_after_the_deadline_is_not_judged() -> None:
    orders = [order("delayed", 20), order("prompt", 20), order("late", 31.1)]
    outcomes = {"delayed": "paid_late", "prompt": "paid_in_time", "late": "paid_late"}
    moments = ReplayRecord(
        placed=dict.fromkeys(outcomes, 100.0), paid={"delayed": 108.0, "prompt": 107.9, "late": 109.0}
    )
    verdict = judge(orders, outcomes, PLAN, moments)
    assert (verdict.delayed, verdict.right, verdict.wrong) == (1, 2, {})
    assert not verdict.passed, "a third of the orders unjudged is too many"
    wrong = judge(orders, {**outcomes, "prompt": "paid_late", "late": "paid_in_time"}, PLAN, moments)
    assert set(wrong.wrong) == {"prompt", "late"}
