"""Deadline: an order that is not paid in time is cancelled once, and a late payment is refunded; never both.

Run it: AMQP_URL=memory:// python unpaid_order.py   (memory:// is a broker in this process; or name one.
REDIS_URL chooses a Redis; without it a file is used)
"""

import asyncio
import os
import tempfile
from datetime import timedelta

from warren.patterns import Deadline, DeadlineOutcome, Once, RedisStore, SqliteStore
from warren.sdk import App, Command, Event


class OrderPlaced(Event, exchange="orders", key="order.placed"):
    order_id: str


class OrderPaid(Event, exchange="orders", key="order.paid"):
    order_id: str


class CancelOrder(Command, queue="orders.cancel"):
    order_id: str


url = os.environ.get("REDIS_URL")
store = RedisStore(url) if url else SqliteStore(f"{tempfile.mkdtemp()}/decisions.sqlite")
# --8<-- [start:pattern]
unpaid = Deadline(
    "order-unpaid",
    after=timedelta(seconds=1),  # in production: minutes=30
    signal=lambda key: CancelOrder(order_id=key),
    store=store,
)
app = App()
app.include(unpaid)


@app.handle(OrderPlaced, queue="deadlines")
async def start(order: OrderPlaced) -> None:
    await unpaid.start(order.order_id)


@app.handle(OrderPaid, queue="payments")
async def paid(payment: OrderPaid) -> None:
    match await unpaid.complete(payment.order_id):
        case DeadlineOutcome.WON:
            print(f"order {payment.order_id}: paid in time")
        case DeadlineOutcome.LATE:
            print(f"order {payment.order_id}: paid late, refunded")
            refunded.set()
        case DeadlineOutcome.REPEATED:
            print(f"order {payment.order_id}: paid twice, one given back")


# --8<-- [end:pattern]


@app.handle(CancelOrder, once=Once(store))
async def cancel(order: CancelOrder) -> None:
    print(f"order {order.order_id}: cancelled")
    cancelled.set()


cancelled, refunded = asyncio.Event(), asyncio.Event()


async def main() -> None:
    async with app:
        await app.publish(OrderPlaced(order_id="41"))
        await app.publish(OrderPlaced(order_id="42"))
        await app.publish(OrderPaid(order_id="41"))
        await cancelled.wait()
        await app.publish(OrderPaid(order_id="42"))
        await refunded.wait()


if __name__ == "__main__":
    asyncio.run(main())
