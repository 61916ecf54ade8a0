"""Immediate delivery: a publisher gets an error at once if no consumer accepts the message.

Run it: python examples/immediate.py   (AMQP_URL chooses a broker; without it nothing else is needed)
"""

import asyncio

from warren.patterns import Immediate, NoConsumer
from warren.sdk import App, Message


class Ring(Message):
    caller: str


async def main() -> None:
    publisher = App()
    bell = Immediate("bell")
    publisher.include(bell)
    async with publisher:
        try:
            await bell.publish(Ring(caller="the postman"))
        except NoConsumer:
            print("no consumer: nobody is at home")

        consumer, opened = App(str(publisher.url)), asyncio.Event()
        doorbell = Immediate("bell")
        consumer.include(doorbell)

        @doorbell.handle(Ring)
        async def answer(ring: Ring) -> None:
            print("opened for", ring.caller)
            opened.set()

        async with consumer:
            await bell.publish(Ring(caller="a friend"))
            await opened.wait()


if __name__ == "__main__":
    asyncio.run(main())
