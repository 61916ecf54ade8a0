"""Dead letters: what is rejected, expires or does not fit goes to another exchange.

The original names a dead letter exchange and forgets the queue behind it, or its binding: the broker drops
what it cannot route there, without a word. It rejects without a reason, so that nobody knows later why.
And it dead-letters at most once: between the two queues a message may be lost. Here the dead letter queue
is declared along, the copy says why, and quorum queues dead-letter at least once.
"""

import asyncio
from datetime import timedelta

from warren.patterns import ParkingLot
from warren.patterns.dead_letters import ParkedMessage
from warren.sdk import App, Command, DeadLetter, Queue


class Parcel(Command, queue=Queue("literature.parcels", message_ttl=timedelta(milliseconds=300))):
    weight: int


app = App()
held = asyncio.Event()


@app.handle(Parcel, concurrency=1)
async def carry(parcel: Parcel) -> None:
    if parcel.weight > 30:
        raise DeadLetter("too heavy")
    await held.wait()  # and while this one is carried, those that wait behind it grow old


async def main() -> None:
    async with app:
        for weight in (31, 1, 2, 3):
            await app.publish(Parcel(weight=weight))
        letters: list[ParkedMessage] = []
        while len(letters) < 2:
            async with ParkingLot(str(app.url), "literature.parcels.dead") as lot:
                letters = [letter async for letter in lot]
        held.set()
        for letter in letters:
            print(letter.reason, letter.error)


if __name__ == "__main__":
    asyncio.run(main())
