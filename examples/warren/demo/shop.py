"""Shop of the demo: its messages, and the handlers that place, pay and cancel orders, as in an application of yours."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from warren.patterns import Deadline, DeadlineOutcome, Once, Store
from warren.sdk import App, Command, Event, Queue

AUDIT = Queue("orders.audit", type="stream")
"""Stream that gets all order events, for the Spark pipeline."""


class PlaceOrder(Command, queue="orders.place"):
    order_id: str
    placed_at: datetime
    sent_at: datetime
    """Real time at which the order was placed; the time to pay starts then."""


class PayOrder(Command, queue="orders.pay"):
    order_id: str
    paid_at: datetime
    sent_at: datetime
    """Real time of the payment. A payment after the time to pay is late, even if the deadline has not been processed
    yet."""


class CancelOrder(Command, queue="orders.cancel"):
    order_id: str


class OrderPlaced(Event, exchange="orders", key="order.placed", audience=[AUDIT]):
    order_id: str
    placed_at: datetime


class OrderPaid(Event, exchange="orders", key="order.paid", audience=[AUDIT]):
    order_id: str
    paid_at: datetime


class OrderCancelled(Event, exchange="orders", key="order.cancelled", audience=[AUDIT]):
    order_id: str


class OrderRefunded(Event, exchange="orders", key="order.refunded", audience=[AUDIT]):
    order_id: str


@dataclass
class ProcessedOrders:
    """Orders that the handlers have processed: their ids by outcome. A redelivery changes nothing."""

    placed: set[str] = field(default_factory=set)
    paid_in_time: set[str] = field(default_factory=set)
    paid_late: set[str] = field(default_factory=set)
    cancelled: set[str] = field(default_factory=set)
    decided: dict[str, float] = field(default_factory=dict)
    """Time of the monotonic clock at which the first payment of each order was found in time or late."""


class Shop:
    """Application of the demo: an App with its handlers, and the deadline that cancels unpaid orders.

    :param url: URL of the broker
    :param time_to_pay: real time after which an unpaid order is cancelled
    :param store: store for deadlines and idempotency keys
    """

    def __init__(self, url: str, time_to_pay: timedelta, store: Store) -> None:
        self.processed = ProcessedOrders()
        self.changed = asyncio.Event()
        """Event that is set after each change of `processed`."""
        # Time is scaled down: with the usual backoff, reconnecting would delay a tenth of the orders.
        self.app = App(url, longest_retry=0.25)
        self.unpaid = Deadline(
            "order-unpaid",
            after=time_to_pay,
            signal=lambda order_id: CancelOrder(order_id=order_id),
            store=store,
        )
        self.app.include(self.unpaid)
        self.app.handle(PlaceOrder, concurrency=20)(self.place)
        self.app.handle(PayOrder, concurrency=20)(self.pay)
        self.app.handle(CancelOrder, concurrency=20, once=Once(store, key=cancelled_order))(self.cancel)

    async def place(self, command: PlaceOrder) -> None:
        await self.unpaid.start(command.order_id, at=command.sent_at)
        await self.app.publish(OrderPlaced(order_id=command.order_id, placed_at=command.placed_at))
        self._record(self.processed.placed, command.order_id)

    async def pay(self, command: PayOrder) -> None:
        outcome = await self.unpaid.complete(command.order_id, at=command.sent_at)
        self.processed.decided.setdefault(command.order_id, time.monotonic())
        if outcome is DeadlineOutcome.REPEATED:
            # Another message has paid this order and published its event. A redelivery of that message gets WON again.
            return
        await self.app.publish(OrderPaid(order_id=command.order_id, paid_at=command.paid_at))
        if outcome is DeadlineOutcome.LATE:
            await self.app.publish(OrderRefunded(order_id=command.order_id))
            self._record(self.processed.paid_late, command.order_id)
        else:
            self._record(self.processed.paid_in_time, command.order_id)

    async def cancel(self, command: CancelOrder) -> None:
        await self.app.publish(OrderCancelled(order_id=command.order_id))
        self._record(self.processed.cancelled, command.order_id)

    def _record(self, orders: set[str], order_id: str) -> None:
        orders.add(order_id)
        self.changed.set()


def cancelled_order(command: CancelOrder) -> str:
    return command.order_id
