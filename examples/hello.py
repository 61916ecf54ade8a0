"""Hello: an event is published and handled; the broker runs in this process unless AMQP_URL names another."""

import asyncio

from warren.sdk import App, Event


class OrderPlaced(Event, exchange="orders", key="order.placed"):
    order_id: str


async def main() -> None:
    app, billed = App(), asyncio.Event()

    @app.handle(OrderPlaced, queue="billing")
    async def bill(order: OrderPlaced) -> None:  # returns: acknowledged
        print("billed", order.order_id)
        billed.set()

    async with app:
        await app.publish(OrderPlaced(order_id="42"))  # returns when the broker has it
        await billed.wait()


if __name__ == "__main__":
    asyncio.run(main())
