"""Typed handlers on a stream: one reads all messages from the first on, one resumes where it stopped.

The broker runs in this process unless AMQP_URL names another, RabbitMQ for example.
"""

import asyncio
import os
from datetime import timedelta

from warren.broker import Broker
from warren.sdk import App, Delivery, Event, Queue


class OrderPlaced(Event, exchange="orders", key="placed"):
    order: int
    total: float


ORDERS = Queue("orders.log", type="stream", max_age=timedelta(days=7))


def billing(url: str, billed: asyncio.Queue[int]) -> App:
    app = App(url)

    @app.handle(OrderPlaced, stream=ORDERS, offset="first", resume=True)
    async def bill(order: OrderPlaced, delivery: Delivery) -> None:
        print(f"billed order {order.order} at offset {delivery.offset}")
        billed.put_nowait(order.order)

    return app


def reporting(url: str, done: asyncio.Event) -> App:
    app = App(url)
    totals: list[float] = []

    @app.handle(OrderPlaced, stream=ORDERS, offset="first")
    async def add(order: OrderPlaced) -> None:
        totals.append(order.total)
        if len(totals) == 3:
            print(f"total: {sum(totals):.2f}")
            done.set()

    return app


async def demonstrate(url: str) -> None:
    billed: asyncio.Queue[int] = asyncio.Queue()
    async with billing(url, billed) as app:
        for number in (1, 2):
            await app.publish(OrderPlaced(order=number, total=10.0))
        assert [await billed.get(), await billed.get()] == [1, 2]

    done = asyncio.Event()
    async with billing(url, billed) as app, reporting(url, done):
        await app.publish(OrderPlaced(order=3, total=5.5))
        await done.wait()
        assert await billed.get() == 3  # it resumed behind order 2


async def main() -> None:
    if url := os.environ.get("AMQP_URL"):
        await demonstrate(url)
    else:
        async with Broker() as broker:
            await demonstrate(broker.url)


if __name__ == "__main__":
    asyncio.run(main())
