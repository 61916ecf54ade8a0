"""An AMQP broker in this process, on a free port, for tests and small services."""

import asyncio

import aio_pika

from warren.broker import Broker


async def main() -> None:
    async with Broker() as broker:  # Broker(data_dir="data") keeps durable queues and persistent messages
        connection = await aio_pika.connect(broker.url)
        async with connection, await connection.channel() as channel:
            queue = await channel.declare_queue("greetings", exclusive=True)
            await channel.default_exchange.publish(aio_pika.Message(b"hello"), "greetings")
            message = await queue.get()
            await message.ack()
            print(message.body.decode())


if __name__ == "__main__":
    asyncio.run(main())
