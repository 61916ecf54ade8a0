"""Lazy queue: messages wait on disk, and take hardly any memory.

This program uses aio-pika, because the SDK's queues page out by themselves. The textbook version makes every
queue lazy, or does so by an argument that no policy can change later. Since RabbitMQ 3.12 classic queues
always behave like lazy queues, and 4.3 refuses the argument. Lazy does not mean durable: a lazy queue writes
transient messages to disk as well, but they do not survive a restart.
"""

import asyncio
import os

import aio_pika

from warren.broker import Broker

NAME = "literature.lazy"


async def show(url: str) -> None:
    connection = await aio_pika.connect(url)
    async with connection:
        channel = await connection.channel()
        queue = await channel.declare_queue(NAME, durable=True, arguments={"x-queue-mode": "lazy"})
        for number in range(200):
            message = aio_pika.Message(b"%d" % number, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
            await channel.default_exchange.publish(message, NAME)
        order = [int((await queue.get(no_ack=True)).body) for _ in range(200)]
        print("in order:", order == list(range(200)))
        await queue.delete()


async def main() -> None:
    if url := os.environ.get("AMQP_URL"):
        await show(url)
    else:
        async with Broker() as broker:
            await show(broker.url)


if __name__ == "__main__":
    asyncio.run(main())
