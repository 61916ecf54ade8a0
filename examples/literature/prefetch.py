"""Prefetch of 3: of two consumers on one channel, each has at most 3 unacknowledged messages.

This program uses aio-pika, because the SDK has one consumer per channel.
Textbooks claim that `basic.qos` limits the channel, and with `global=true` the connection, as in the AMQP
specification. In RabbitMQ it limits each consumer that starts afterwards (RabbitMQ, "Consumer Prefetch").
There `global=true` limited the channel up to version 4.2; since 4.3 it means the same as `global=false`.
"""

import asyncio
import os
from collections import Counter

import aio_pika
from aio_pika.abc import AbstractIncomingMessage

from warren.broker import Broker


async def show(url: str) -> None:
    connection = await aio_pika.connect(url)
    async with connection:
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=3)
        queues = [await channel.declare_queue(exclusive=True) for _ in range(2)]
        unacknowledged: list[str] = []
        six_delivered = asyncio.Event()

        async def take(message: AbstractIncomingMessage) -> None:
            unacknowledged.append(message.consumer_tag or "")
            if len(unacknowledged) == 6:
                six_delivered.set()

        for queue in queues:
            for number in range(10):
                await channel.default_exchange.publish(aio_pika.Message(b"%d" % number), queue.name)
        for queue in queues:
            await queue.consume(take)
        await six_delivered.wait()
        # No more deliveries arrive without an acknowledgement: after a round trip there are still six.
        await channel.declare_queue(exclusive=True)
        print("unacknowledged:", sorted(Counter(unacknowledged).values(), reverse=True))


async def main() -> None:
    if url := os.environ.get("AMQP_URL"):
        await show(url)
    else:
        async with Broker() as broker:
            await show(broker.url)


if __name__ == "__main__":
    asyncio.run(main())
