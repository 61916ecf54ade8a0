"""Alternate exchange: what an exchange cannot route goes to another one.

The original makes the alternate a direct exchange: the message keeps its routing key, which matches
nothing there either, and it is lost without an error. It also says that `mandatory` has no effect any
more: it has, when the alternate routes it to no queue. Here the alternate is a fanout, and somebody is
told.
"""

import asyncio

from warren.patterns import CatchAll
from warren.sdk import App, Delivery, Event

told = asyncio.Event()


async def tell(delivery: Delivery) -> None:
    print("kept, and told:", delivery.routing_key)
    told.set()


normal = CatchAll("literature.normal", alert=tell)
app = App()
app.include(normal)


class Known(Event, exchange=normal.exchange, key="known"):
    text: str


class Unknown(Event, exchange=normal.exchange, key="unknown"):
    text: str


@app.handle(Known, queue="literature.known")
async def known(message: Known) -> None:
    print("handled:", message.text)
    await app.publish(Unknown(text="who takes this?"))  # returns: the alternate has it


async def main() -> None:
    async with app:
        await app.publish(Known(text="hello"))
        await told.wait()


if __name__ == "__main__":
    asyncio.run(main())
