"""Filter the messages of a stream, and replay a part of it to the same handler.

The broker runs in this process unless AMQP_URL names another, RabbitMQ for example.
"""

import asyncio
import os

from warren.broker import Broker
from warren.sdk import App, Delivery, Event


class OrderPlaced(Event, exchange="orders", key="placed", filter_by="region"):
    order: int
    region: str | None


async def demonstrate(url: str) -> None:
    app = App(url)
    shipped: asyncio.Queue[int] = asyncio.Queue()

    @app.handle(OrderPlaced, stream="orders.regions", offset="first", filter=["eu", "us"])
    async def ship(order: OrderPlaced, delivery: Delivery) -> None:
        print(f"{'again' if delivery.replayed else 'shipped'}: order {order.order} to {order.region}")
        shipped.put_nowait(order.order)

    async with app:
        for number, region in enumerate(("eu", "asia", "us", None)):
            await app.publish(OrderPlaced(order=number, region=region))
        assert [await shipped.get(), await shipped.get()] == [0, 2]
        report = await app.replay_stream("orders.regions", reader="ship", start=1, end=4)
        print(f"replayed {report.delivered}, the last one at offset {report.last}")


async def main() -> None:
    if url := os.environ.get("AMQP_URL"):
        await demonstrate(url)
    else:
        async with Broker() as broker:
            await demonstrate(broker.url)


if __name__ == "__main__":
    asyncio.run(main())
