"""Reliable publishing: one by one, in a window, in batches, in order, in a transaction."""

import asyncio

from warren.sdk import App, Command


class Ship(Command, queue="shipping"):
    number: int


async def main() -> None:
    app = App()
    async with app:
        # One by one: the slowest, and often fast enough.
        await app.publish(Ship(number=1))

        # Many in a window, with a report. Refused messages are attempted up to 3 times.
        report = await app.publish_many((Ship(number=n) for n in range(2, 100)), attempts=3)
        print("in a window:", report.confirmed)

        # In order: no message overtakes one that was refused or interrupted.
        report = await app.publish_many((Ship(number=n) for n in range(100, 200)), ordered=True)
        print("in order:", report.confirmed)

        # In batches of 50; an incomplete batch is closed after 10 s.
        async for report in app.publish_batches(
            (Ship(number=n) for n in range(200, 300)), count=50, within=10
        ):
            print("a batch:", report.confirmed)

        # Write now, and await the confirm later.
        confirm = await app.submit(Ship(number=300))
        await confirm

        # All or none.
        async with app.transaction() as tx:
            await tx.publish(Ship(number=301))
            await tx.publish(Ship(number=302))
        print("published:", app.statistics().publisher.confirmed)


if __name__ == "__main__":
    asyncio.run(main())
