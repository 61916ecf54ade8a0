"""Verdict of the demo: comparison of the outcome of each order in the pipeline's results with the expected outcome."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from warren.demo.orders import Order
from warren.demo.replay import ReplayPlan, ReplayRecord

NEAR_TIMEOUT = timedelta(minutes=1)
"""Tolerance around the end of the time to pay, measured in the time of the CSV file: a payment within this distance may
correctly be in time or late."""
MAX_UNJUDGED = 0.25
"""Largest share of orders, from 0 to 1, that may remain unjudged (because two
outcomes would be correct) for the demo to pass."""

POSSIBLE_OUTCOMES = {True: ("paid_in_time", "paid_late"), False: ("cancelled",)}
"""Outcomes that an order can have: for paid orders (True) and for orders that were never paid (False)."""


@dataclass
class Verdict:
    """Result of comparing the outcome of every order with the expected one."""

    orders: int
    right: int = 0
    near_timeout: int = 0
    """Number of orders whose payment is within `NEAR_TIMEOUT` of the end of the time to pay."""
    delayed: int = 0
    """Number of orders whose payment was sent in time but handled only after the deadline, because the broker was down
    or the machine busy. The deadline may have been handled first."""
    outcomes: Counter[str] = field(default_factory=Counter)
    """Number of orders by outcome as the Spark job found it, including orders that were not judged."""
    wrong: dict[str, str] = field(default_factory=dict)
    """Description of the error for each wrong order, by order id, such as `is cancelled, must be paid_in_time`."""

    @property
    def unjudged(self) -> int:
        """Number of orders that cannot be judged, because paid in time and paid late would both be correct."""
        return self.near_timeout + self.delayed

    @property
    def passed(self) -> bool:
        """True if no order is wrong and at most the share `MAX_UNJUDGED` of the orders is unjudged."""
        return not self.wrong and self.unjudged <= MAX_UNJUDGED * self.orders


def judge(
    orders: list[Order], outcomes: Mapping[str, str], plan: ReplayPlan, record: ReplayRecord
) -> Verdict:
    """Compare the outcome of each order with the outcome that is expected from its times, and return the verdict.

    Every order must have an outcome that is possible for it: paid in time or late if it was paid, else cancelled. A
    payment near the timeout, or one that was sent in time and handled after the deadline, may be in time or late; such
    orders are counted separately as unjudged.

    :param outcomes: outcome that the Spark job found, by order id, such as `paid_in_time`
    :param record: real times of the replay's placements, payments and broker crash
    """
    verdict = Verdict(len(orders))
    for order in orders:
        outcome = outcomes.get(order.order_id)
        paid = order.delay is not None
        if outcome is not None:
            verdict.outcomes[outcome] += 1
        if outcome is None or outcome not in POSSIBLE_OUTCOMES[paid]:
            verdict.wrong[order.order_id] = "lost" if outcome in (None, "open") else f"is {outcome}"
        elif order.delay is not None and abs(order.delay - plan.timeout) <= NEAR_TIMEOUT:
            verdict.near_timeout += 1
        elif delayed(order, plan, record):
            verdict.delayed += 1
        elif outcome != expected_outcome(order, plan.timeout):
            verdict.wrong[order.order_id] = f"is {outcome}, must be {expected_outcome(order, plan.timeout)}"
        else:
            verdict.right += 1
    known = {order.order_id for order in orders}
    for stranger in outcomes.keys() - known:
        verdict.wrong[stranger] = "was never placed"
    return verdict


def expected_outcome(order: Order, timeout: timedelta) -> str:
    """Return the outcome that is correct for an order according to its times in the file.

    It is `cancelled` if the order was never paid, else `paid_in_time` or `paid_late`.

    :param timeout: time to pay, in the time of the file.
    """
    if order.delay is None:
        return "cancelled"
    return "paid_in_time" if order.delay < timeout else "paid_late"


def delayed(order: Order, plan: ReplayPlan, record: ReplayRecord) -> bool:
    """Return True if the payment of an order was sent in time, but may have been handled after the order's deadline.

    :param record: real times of the replay's placements, payments and broker crash
    """
    handled = record.paid.get(order.order_id)
    if order.delay is None or order.delay > plan.timeout or handled is None:
        return False
    return handled >= record.placed[order.order_id] + plan.time_to_pay.total_seconds()
