"""Prefetch 3 for each consumer and 5 for their channel, both at once: the consumers get 3 and 2.

Plain aio-pika: the SDK has one consumer a channel, where the two mean the same. The original believes that
`global=true` counts for the connection, as the AMQP specification has it: in RabbitMQ it counts for the
channel, and `global=false` for each consumer that is started afterwards (RabbitMQ, "Consumer Prefetch").
RabbitMQ 4.3 refuses `global=true`.
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
        held: list[str] = []
        five = asyncio.Event()

        async def take(message: AbstractIncomingMessage) -> None:
            held.append(message.consumer_tag or "")
            if len(held) == 5:
                five.set()

        for queue in queues:
            for number in range(10):
                await channel.default_exchange.publish(aio_pika.Message(b"%d" % number), queue.name)
        for queue in queues:
            await queue.consume(take)
        await five.wait()
        # Nothing more comes before one is acknowledged: a round trip later there are still five.
        await channel.declare_queue(exclusive=True)
        print("held:", sorted(Counter(held).values(), reverse=True))


async def main() -> None:
    if url := os.environ.get("AMQP_URL"):
        await show(url)
    else:
        async with Broker() as broker:
            await show(broker.url)


if __name__ == "__main__":
    asyncio.run(main())
