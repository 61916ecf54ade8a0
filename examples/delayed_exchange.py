"""Delayed exchange: reminders are delivered in the order of their times, here on a virtual clock."""

import asyncio

import aio_pika

from warren.broker import Broker, VirtualClock


async def main() -> None:
    clock = VirtualClock()
    async with Broker(clock=clock) as broker:
        connection = await aio_pika.connect(broker.url)
        async with connection:
            channel = await connection.channel()
            reminders = await channel.declare_exchange(
                "reminders", "x-delayed-message", arguments={"x-delayed-type": "topic"}
            )
            queue = await channel.declare_queue("mail", exclusive=True)
            await queue.bind(reminders, "mail.#")

            for days in (90, 1, 7):
                message = aio_pika.Message(b"%d days" % days, headers={"x-delay": days * 86_400_000})
                await reminders.publish(message, "mail.reminder")

            for days in (1, 6, 83):
                await clock.advance(days * 86_400)
                print((await queue.get(no_ack=True)).body.decode())


if __name__ == "__main__":
    asyncio.run(main())
