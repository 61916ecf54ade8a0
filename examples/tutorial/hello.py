"""Publish an event and handle it, with a broker in this process."""

import asyncio

from warren.sdk import App, Event


class OrderPlaced(Event, exchange="orders", key="order.placed"):
    order_id: str


app = App("memory://")  # a broker in this process, for a first try
billed = asyncio.Event()


@app.handle(OrderPlaced, queue="billing")
async def bill(order: OrderPlaced) -> None:
    print(f"order {order.order_id}: billed")
    billed.set()


async def main() -> None:
    async with app:
        await app.publish(OrderPlaced(order_id="42"))
        await billed.wait()


asyncio.run(main())
