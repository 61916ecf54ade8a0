"""Publish and handle an event. The broker runs in this process unless AMQP_URL names another."""

import asyncio

from warren.sdk import App, Event


class OrderPlaced(Event, exchange="orders", key="order.placed"):
    order_id: str


async def main() -> None:
    app, billed = App(), asyncio.Event()

    @app.handle(OrderPlaced, queue="billing")
    async def bill(order: OrderPlaced) -> None:  # acknowledged when it returns
        print("billed", order.order_id)
        billed.set()

    async with app:
        await app.publish(OrderPlaced(order_id="42"))  # returns after the broker's confirm
        await billed.wait()


if __name__ == "__main__":
    asyncio.run(main())
