"""Dead letters: rejected, expired and surplus messages go to another exchange.

The textbook version sets a dead letter exchange but forgets its queue or binding: the broker silently drops
dead letters that it cannot route. It rejects without a reason, so that nobody can find the cause later. And
it dead-letters at most once: a message may be lost between the two queues. Here the dead letter queue is
declared with the queue, the copy carries the reason, and quorum queues dead-letter at least once.
"""

import asyncio
from datetime import timedelta

from warren.patterns import ParkedMessage, ParkingLot
from warren.sdk import App, Command, DeadLetter, Queue


class Parcel(Command, queue=Queue("literature.parcels", message_ttl=timedelta(milliseconds=300))):
    weight: int


app = App()
released = asyncio.Event()


@app.handle(Parcel, concurrency=1)
async def carry(parcel: Parcel) -> None:
    if parcel.weight > 30:
        raise DeadLetter("too heavy")
    await released.wait()  # meanwhile the messages behind this one expire


async def main() -> None:
    async with app:
        for weight in (31, 1, 2, 3):
            await app.publish(Parcel(weight=weight))
        letters: list[ParkedMessage] = []
        while len(letters) < 2:
            async with ParkingLot(str(app.url), "literature.parcels.dead") as lot:
                letters = [letter async for letter in lot]
        released.set()
        for letter in letters:
            print(letter.reason, letter.error)


if __name__ == "__main__":
    asyncio.run(main())
