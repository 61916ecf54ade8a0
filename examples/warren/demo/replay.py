"""Replay of the orders: place and pay each one at its time, and kill the broker half-way."""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from warren.demo.orders import Order
from warren.demo.services import BrokerProcess
from warren.demo.shop import PayOrder, PlaceOrder, Shop

LONGEST_DELAY = 2
"""Longest time from an order to its payment in the replay, as a multiple of the time that a customer has to pay. Later
payments are moved forward to it, so that a payment after months does not prolong the replay."""


@dataclass(frozen=True)
class ReplayPlan:
    """Schedule of a replay: how the times in the CSV file become real times.

    :param span: real seconds in which all orders are placed, evenly spaced
    :param speed: how many times faster than in the CSV file the time from an order to its payment passes
    :param timeout: time to pay an order, in the time of the CSV file
    """

    span: float
    speed: float
    timeout: timedelta

    @property
    def time_to_pay(self) -> timedelta:
        """Real time that a customer has to pay: `timeout` divided by `speed`."""
        return self.timeout / self.speed

    def paid_after(self, order: Order) -> float | None:
        """Return the real seconds from the order to its payment, at most `LONGEST_DELAY` times the time to pay; None if it
        was never paid."""
        if order.delay is None:
            return None
        return min(order.delay, LONGEST_DELAY * self.timeout).total_seconds() / self.speed


@dataclass
class ReplayRecord:
    """Real times of the events of a replay, in seconds of the monotonic clock."""

    placed: dict[str, float] = field(default_factory=dict)
    """Scheduled time of each order's placement, by order id."""
    paid: dict[str, float] = field(default_factory=dict)
    """Time at which the shop's handler first found the payment of an order to be in time or late, by order id."""
    killed_at: float | None = None
    ready_at: float | None = None
    confirmed_at: float | None = None
    """Time of the first confirm after the broker's restart."""


async def replay(
    orders: list[Order],
    plan: ReplayPlan,
    shop: Shop,
    broker: BrokerProcess,
    *,
    crash: bool,
    progress: Callable[[str], None],
) -> ReplayRecord:
    """Place and pay all orders, each at its scheduled time, and wait for the broker's confirms; return the real times.

    :param crash: kill and restart the broker half-way.
    :param progress: called with a text about each event, such as the kill.
    """
    record = ReplayRecord(paid=shop.processed.decided)
    start = time.monotonic()
    wall = datetime.now(UTC)
    due: list[tuple[float, int, Order, bool]] = []
    for index, order in enumerate(orders):
        at = index * plan.span / len(orders)
        record.placed[order.order_id] = start + at
        heapq.heappush(due, (at, index, order, False))
        paid_after = plan.paid_after(order)
        if paid_after is not None:
            heapq.heappush(due, (at + paid_after, index, order, True))

    async def publish(message: PlaceOrder | PayOrder) -> None:
        await shop.app.publish(message)
        if record.ready_at is not None and record.killed_at is not None and record.confirmed_at is None:
            record.confirmed_at = time.monotonic()
            progress(f"the first confirm came {record.confirmed_at - record.killed_at:.2f} s after the kill")

    async def kill_and_restart() -> None:
        await asyncio.sleep(start + plan.span / 2 - time.monotonic())
        progress("killing the broker (SIGKILL)")
        record.killed_at = time.monotonic()
        await broker.kill()
        await broker.start()
        record.ready_at = time.monotonic()
        progress(f"the broker is back after {record.ready_at - record.killed_at:.2f} s")

    async with asyncio.TaskGroup() as tasks:
        if crash:
            tasks.create_task(kill_and_restart())
        while due:
            at, _, order, pays = heapq.heappop(due)
            wait = start + at - time.monotonic()
            if wait > 0:
                await asyncio.sleep(wait)
            sent_at = wall + timedelta(seconds=at)
            if pays:
                assert order.paid_at is not None
                tasks.create_task(
                    publish(PayOrder(order_id=order.order_id, paid_at=order.paid_at, sent_at=sent_at))
                )
            else:
                tasks.create_task(
                    publish(PlaceOrder(order_id=order.order_id, placed_at=order.placed_at, sent_at=sent_at))
                )
    return record
