"""Streams: consumers read without removing messages, from any offset or time, as often as they like.

The broker runs in this process unless AMQP_URL names another, RabbitMQ for example.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractIncomingMessage
from pamqp.common import FieldValue

from warren.broker import Broker

STREAM = "orders.log"


@contextlib.asynccontextmanager
async def connect() -> AsyncGenerator[AbstractConnection, None]:
    async with contextlib.AsyncExitStack() as stack:
        url = os.environ.get("AMQP_URL") or (await stack.enter_async_context(Broker())).url
        yield await stack.enter_async_context(await aio_pika.connect(url))


async def read(connection: AbstractConnection, start: FieldValue, count: int) -> list[str]:
    """Read `count` messages from an offset or time. An acknowledgement only makes room for more deliveries."""
    arrived: asyncio.Queue[AbstractIncomingMessage] = asyncio.Queue()
    found: list[str] = []
    async with connection.channel() as channel:
        await channel.set_qos(prefetch_count=100)  # consumers of streams need a prefetch limit
        stream = await channel.get_queue(STREAM)
        # Not `stream.iterator()`: at its end it requeues prefetched messages, which streams refuse.
        await stream.consume(arrived.put, arguments={"x-stream-offset": start})
        while len(found) < count:
            message = await arrived.get()
            found.append(f"{message.headers['x-stream-offset']!r}:{message.body.decode()}")
            await message.ack()
    return found


async def fill(channel: AbstractChannel) -> None:
    await channel.declare_queue(
        STREAM,
        durable=True,
        arguments={"x-queue-type": "stream", "x-max-age": "7D", "x-max-length-bytes": 1_000_000_000},
    )
    for number in range(10):
        message = aio_pika.Message(f"order {number}".encode())
        await channel.default_exchange.publish(
            message, STREAM
        )  # returns after the confirm: the message is on disk


async def main() -> None:
    async with connect() as connection:
        async with connection.channel() as channel:
            await fill(channel)
        print("from the first:", *await read(connection, "first", 2), sep="\n  ")
        print("from offset 8:", *await read(connection, 8, 2), sep="\n  ")
        print("of the last hour:", *await read(connection, "1h", 3), sep="\n  ")
        async with connection.channel() as channel:
            await channel.queue_delete(STREAM)


if __name__ == "__main__":
    asyncio.run(main())
