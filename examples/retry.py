"""Retry with exponential backoff on the broker, then park the message with the reason.

Run it: python examples/retry.py   (AMQP_URL chooses a broker; without it nothing else is needed)
"""

import asyncio

from warren.patterns import ParkedMessage, ParkingLot, backoff
from warren.sdk import App, Command, Delivery, Retry

# 100 ms, 200 ms, 400 ms, each with up to 25 % jitter, so that messages that failed together do not return together.
with_backoff = Retry(1).then(*backoff("100ms", factor=2, times=3), jitter=0.25).on(ConnectionError)


class Charge(Command, queue="charges"):
    order_id: str


async def main() -> None:
    app, last_attempt = App(), asyncio.Event()

    @app.handle(Charge, retry=with_backoff)
    async def charge(command: Charge, delivery: Delivery) -> None:
        print(f"attempt {delivery.attempt}")
        if delivery.attempt == 4:
            last_attempt.set()
        raise ConnectionError("the bank does not answer")

    async with app:
        await app.publish(Charge(order_id="42"))
        await last_attempt.wait()
        letters: list[ParkedMessage] = []
        while not letters:
            async with ParkingLot(str(app.url), "charges.dead") as lot:
                letters = [letter async for letter in lot]
        print("parked:", letters[0].error)


if __name__ == "__main__":
    asyncio.run(main())
