"""The check: what the pipeline found, order by order, against what the file says must have come out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from warren.demo.orders import Order
from warren.demo.replay import Plan, Record

NEAR = timedelta(minutes=1)
"""A payment this close to the timeout, in the file's time, may be judged either way; so may one that a busy machine
brought to the broker so late."""
MOST_LEFT_OUT = 0.10

POSSIBLE = {True: ("paid_in_time", "paid_late"), False: ("cancelled",)}
"""The outcomes an order may have at all, by whether it was paid."""


@dataclass
class Verdict:
    """How the orders came out."""

    orders: int
    right: int = 0
    near_timeout: int = 0
    in_outage: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    """How many orders came out in which way, judged or not."""
    wrong: dict[str, str] = field(default_factory=dict)
    """What is wrong with an order, by its id."""

    @property
    def left_out(self) -> int:
        return self.near_timeout + self.in_outage

    @property
    def passed(self) -> bool:
        return not self.wrong and self.left_out <= MOST_LEFT_OUT * self.orders


def judge(orders: list[Order], outcomes: Mapping[str, str], plan: Plan, record: Record) -> Verdict:
    """Hold each order's outcome against its times.

    Every order must have exactly one outcome that is possible for it. Which one is judged but for those whose payment is
    near the timeout, and those whose payment or deadline fell due in the outage; these are counted apart.
    """
    verdict = Verdict(len(orders))
    for order in orders:
        outcome = outcomes.get(order.order_id)
        paid = order.delay is not None
        if outcome is not None:
            verdict.outcomes[outcome] += 1
        if outcome is None or outcome not in POSSIBLE[paid]:
            verdict.wrong[order.order_id] = "lost" if outcome in (None, "open") else f"is {outcome}"
        elif near_timeout(order, plan, record):
            verdict.near_timeout += 1
        elif in_outage(order, plan, record):
            verdict.in_outage += 1
        elif outcome != expected(order, plan.timeout):
            verdict.wrong[order.order_id] = f"is {outcome}, has to be {expected(order, plan.timeout)}"
        else:
            verdict.right += 1
    known = {order.order_id for order in orders}
    for stranger in outcomes.keys() - known:
        verdict.wrong[stranger] = "was never placed"
    return verdict


def expected(order: Order, timeout: timedelta) -> str:
    if order.delay is None:
        return "cancelled"
    return "paid_in_time" if order.delay < timeout else "paid_late"


def near_timeout(order: Order, plan: Plan, record: Record) -> bool:
    if order.delay is None:
        return False
    if abs(order.delay - plan.timeout) <= NEAR:
        return True
    # Paid in time and late at the broker: the store decides by what it hears first. One that says itself that it was
    # sent too late is late whenever it comes.
    paid = record.paid.get(order.order_id)
    if paid is None or order.delay > plan.timeout:
        return False
    return paid - record.placed[order.order_id] >= ((plan.timeout - NEAR) / plan.speed).total_seconds()


def in_outage(order: Order, plan: Plan, record: Record) -> bool:
    window = record.outage()
    if window is None:
        return False
    placed = record.placed[order.order_id]
    moments = [placed + plan.time_to_pay.total_seconds()]
    paid_after = plan.paid_after(order)
    if paid_after is not None:
        moments.append(placed + paid_after)
    return any(window[0] <= moment <= window[1] for moment in moments)
