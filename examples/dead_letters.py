"""Dead letters: inspect an order that could not be billed, and replay it when the cause is fixed.

Run it: python examples/dead_letters.py   (AMQP_URL chooses a broker; without it nothing else is needed)
"""

import asyncio

from warren.patterns import DeadLetterSelection, ParkedMessage, ParkingLot, replay
from warren.sdk import App, Event, Retry


class OrderPlaced(Event, exchange="orders", key="order.placed"):
    order_id: str


app = App()
bank_answers = asyncio.Event()
billed = asyncio.Event()


@app.handle(OrderPlaced, queue="billing", retry=Retry(1))
async def bill(order: OrderPlaced) -> None:
    if not bank_answers.is_set():
        raise OSError("the bank does not answer")
    billed.set()


async def parked() -> list[ParkedMessage]:
    async with ParkingLot(str(app.url), "billing.dead") as lot:
        return [letter async for letter in lot]


async def main() -> None:
    async with app:
        await app.publish(OrderPlaced(order_id="42"))
        while not (letters := await parked()):
            pass
        print(f"{letters[0].reason} in {letters[0].queue}: {letters[0].error}")

        bank_answers.set()
        async with ParkingLot(str(app.url), "billing.dead") as lot:
            # Only to the queue where it failed: other queues of the exchange may have handled the order.
            settled = await replay(lot, app, DeadLetterSelection(exception="OSError"), rate=50)
        await billed.wait()
        print("replayed and billed:", settled.done)


if __name__ == "__main__":
    asyncio.run(main())
