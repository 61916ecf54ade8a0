"""Handlers in a module of their own: a router, included in the App with a prefix."""

import asyncio

from warren.sdk import App, Event, Queue, Router


class OrderPlaced(Event, exchange="orders", key="order.placed"):
    order_id: int


# billing.py: this module needs no App.
billing = Router(prefix="billing.")
billed = asyncio.Event()


@billing.handle(OrderPlaced, queue="orders", concurrency=4)
async def bill(order: OrderPlaced, app: App) -> None:
    print("billed", order.order_id)
    billed.set()


# main.py
app = App("memory://")
app.include(billing)


async def main() -> None:
    print("queues:", [item.name for item in app.topology if isinstance(item, Queue)])
    async with app:
        await app.publish(OrderPlaced(order_id=42))
        await billed.wait()


if __name__ == "__main__":
    asyncio.run(main())
