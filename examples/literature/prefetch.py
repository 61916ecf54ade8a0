"""Prefetch of 3 for each consumer and 5 for their channel: the two consumers get 3 and 2 messages.

This program uses aio-pika, because the SDK has one consumer per channel, where both limits mean the same.
Textbooks claim that `global=true` applies to the connection, as in the AMQP specification. In RabbitMQ it
applies to the channel, and `global=false` to each consumer that starts afterwards (RabbitMQ, "Consumer
Prefetch"). RabbitMQ 4.3 refuses `global=true`.
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
        await channel.set_qos(prefetch_count=3)  # each consumer of this channel
        await channel.set_qos(prefetch_count=5, global_=True)  # the channel
        queues = [await channel.declare_queue(exclusive=True) for _ in range(2)]
        unacknowledged: list[str] = []
        five_delivered = asyncio.Event()

        async def take(message: AbstractIncomingMessage) -> None:
            unacknowledged.append(message.consumer_tag or "")
            if len(unacknowledged) == 5:
                five_delivered.set()

        for queue in queues:
            for number in range(10):
                await channel.default_exchange.publish(aio_pika.Message(b"%d" % number), queue.name)
        for queue in queues:
            await queue.consume(take)
        await five_delivered.wait()
        # No more deliveries arrive without an acknowledgement: after a round trip there are still five.
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
