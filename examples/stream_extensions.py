"""Streams with Warren's extensions: the broker filters by an expression, and drops what a producer publishes again."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage

from warren.broker import Broker

STREAM = "orders.log"


@contextlib.asynccontextmanager
async def connect() -> AsyncGenerator[AbstractChannel, None]:
    async with Broker() as broker, await aio_pika.connect(broker.url) as connection:
        yield await connection.channel()


async def publish(channel: AbstractChannel, number: int, region: str, amount: int) -> None:
    message = aio_pika.Message(
        f"order {number}".encode(),
        headers={
            "region": region,
            "amount": amount,
            "x-warren-producer": "shop-1",
            "x-warren-publishing-id": number,
        },
    )
    await channel.default_exchange.publish(message, STREAM)  # returns after the confirm


async def main() -> None:
    async with connect() as channel:
        stream = await channel.declare_queue(STREAM, durable=True, arguments={"x-queue-type": "stream"})
        orders = [(1, "eu", 20), (2, "us", 900), (3, "eu", 500)]
        for order in orders:
            await publish(channel, *order)
        # The shop was restarted, and does not know which of its orders have arrived: it publishes all again.
        for order in [*orders, (4, "eu", 700)]:
            await publish(channel, *order)

        arrived: asyncio.Queue[AbstractIncomingMessage] = asyncio.Queue()
        await channel.set_qos(prefetch_count=100)
        expression = "region = 'eu' AND amount >= 100"
        await stream.consume(
            arrived.put, arguments={"x-stream-offset": "first", "x-warren-filter": expression}
        )
        for _ in range(2):
            message = await arrived.get()
            print(f"{message.headers['x-stream-offset']!r}:{message.body.decode()}")
            await message.ack()


if __name__ == "__main__":
    asyncio.run(main())
