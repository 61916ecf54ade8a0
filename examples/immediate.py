"""Immediate delivery: a publisher gets an error at once if no consumer accepts the message.

Run it: python examples/immediate.py   (AMQP_URL chooses a broker; without it nothing else is needed)
"""

import asyncio

from warren.patterns import Immediate, NoConsumer
from warren.sdk import App, Message


class Ring(Message):
    caller: str


async def main() -> None:
    street = App()
    bell = Immediate("bell")
    street.include(bell)
    async with street:
        try:
            await bell.publish(Ring(caller="the postman"))
        except NoConsumer:
            print("nobody is at home")

        house, heard = App(str(street.url)), asyncio.Event()
        at_home = Immediate("bell")
        house.include(at_home)

        @at_home.handle(Ring)
        async def answer(ring: Ring) -> None:
            print("opened for", ring.caller)
            heard.set()

        async with house:
            await bell.publish(Ring(caller="a friend"))
            await heard.wait()


if __name__ == "__main__":
    asyncio.run(main())
