"""Catch-all: keep messages that no binding matches, and raise an alert.

Run it: python examples/catch_all.py   (AMQP_URL chooses a broker; without it nothing else is needed)
"""

import asyncio

from warren.patterns import CatchAll, ParkingLot
from warren.sdk import App, Delivery, Event

alerted = asyncio.Event()


async def alert(delivery: Delivery) -> None:
    print("no queue is bound for", delivery.routing_key)
    alerted.set()


orders = CatchAll("orders", alert=alert)


class OrderRefunded(Event, exchange=orders.exchange, key="order.refunded"):
    order_id: str


async def main() -> None:
    app = App()
    app.include(orders)
    async with app:
        await app.publish(OrderRefunded(order_id="42"))
        await alerted.wait()
        async with ParkingLot(str(app.url), orders.queue.name) as lot:
            async for letter in lot:
                print("kept", letter.delivery.body.decode())


if __name__ == "__main__":
    asyncio.run(main())
