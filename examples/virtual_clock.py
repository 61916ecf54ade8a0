"""Virtual clock: a broker in this process whose time the program advances by an hour in milliseconds."""

import asyncio

import aio_pika

from warren.broker import Broker, VirtualClock


async def main() -> None:
    clock = VirtualClock()
    async with Broker(clock=clock) as broker:
        connection = await aio_pika.connect(broker.url)
        async with connection:
            channel = await connection.channel()
            due = await channel.declare_queue("due", exclusive=True)
            await channel.declare_queue(
                "in-an-hour",
                exclusive=True,
                arguments={
                    "x-message-ttl": 3_600_000,
                    "x-dead-letter-exchange": "",
                    "x-dead-letter-routing-key": "due",
                },
            )
            await channel.default_exchange.publish(aio_pika.Message(b"order 42"), "in-an-hour")

            await clock.advance(3599)
            assert await due.get(fail=False) is None
            await clock.advance(1)
            message = await due.get(no_ack=True)
            print(message.body.decode(), "is due")


if __name__ == "__main__":
    asyncio.run(main())
