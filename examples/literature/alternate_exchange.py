"""Alternate exchange: unroutable messages go to another exchange instead of being dropped.

The textbook version declares the alternate as a direct exchange: the message keeps its routing key, which
matches no binding there either, and is lost without an error. It also claims that `mandatory` has no effect
any more; it has, if the alternate exchange routes the message to no queue. Here the alternate is a fanout
exchange with a queue and an alert.
"""

import asyncio

from warren.patterns import CatchAll
from warren.sdk import App, Delivery, Event

alerted = asyncio.Event()


async def alert(delivery: Delivery) -> None:
    print("kept, and alerted:", delivery.routing_key)
    alerted.set()


normal = CatchAll("literature.normal", alert=alert)
app = App()
app.include(normal)


class Known(Event, exchange=normal.exchange, key="known"):
    text: str


class Unknown(Event, exchange=normal.exchange, key="unknown"):
    text: str


@app.handle(Known, queue="literature.known")
async def known(message: Known) -> None:
    print("handled:", message.text)
    await app.publish(Unknown(text="who takes this?"))  # succeeds: the alternate exchange routes it


async def main() -> None:
    async with app:
        await app.publish(Known(text="hello"))
        await alerted.wait()


if __name__ == "__main__":
    asyncio.run(main())
