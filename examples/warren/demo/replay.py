"""Replay of orders: place and pay them at their times, and kill the broker half-way."""

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

CATCH_UP_SECONDS = 0.7
"""Real seconds after the first confirm in which the backlog is still being processed."""


@dataclass(frozen=True)
class ReplayPlan:
    """Schedule of a replay.

    :param span: real seconds in which the orders are placed, evenly
    :param speed: factor by which time passes faster than in the file, from an order to its payment
    :param timeout: time to pay, in the time of the file
    """

    span: float
    speed: float
    timeout: timedelta

    @property
    def time_to_pay(self) -> timedelta:
        """Real time to pay."""
        return self.timeout / self.speed

    def paid_after(self, order: Order) -> float | None:
        """Return the real seconds from order to payment, at most four times the timeout; None if never paid."""
        if order.delay is None:
            return None
        return min(order.delay, 4 * self.timeout).total_seconds() / self.speed


@dataclass
class ReplayRecord:
    """Times of a replay, by the monotonic clock."""

    placed: dict[str, float] = field(default_factory=dict)
    """Time at which each order was due to be placed."""
    paid: dict[str, float] = field(default_factory=dict)
    """Time at which each payment was confirmed: on a busy machine, later than it was due."""
    killed_at: float | None = None
    ready_at: float | None = None
    confirmed_at: float | None = None
    """Time of the first confirm after the restart."""

    def outage(self) -> tuple[float, float] | None:
        """Return start and end of the outage: the kill, and the first confirm plus the time to catch up."""
        if self.killed_at is None:
            return None
        assert self.confirmed_at is not None
        return self.killed_at, self.confirmed_at + CATCH_UP_SECONDS


async def replay(
    orders: list[Order],
    plan: ReplayPlan,
    shop: Shop,
    broker: BrokerProcess,
    *,
    crash: bool,
    progress: Callable[[str], None],
) -> ReplayRecord:
    """Place and pay all orders, each at its time. Return when all publishes are confirmed."""
    record = ReplayRecord()
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
        if isinstance(message, PayOrder):
            record.paid[message.order_id] = time.monotonic()
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
