"""The ways to be sure of a publish: one by one, in a window, in batches, in order, in a transaction."""

import asyncio

from warren.sdk import App, Command


class Ship(Command, queue="shipping"):
    number: int


async def main() -> None:
    app = App()
    async with app:
        # One by one: the slowest way, and often fast enough.
        await app.publish(Ship(number=1))

        # Many in a window, with a report; what was refused is tried again up to 3 times.
        report = await app.publish_many((Ship(number=n) for n in range(2, 100)), attempts=3)
        print("in a window:", report.confirmed)

        # In order: nothing overtakes what was refused or cut off.
        report = await app.publish_many((Ship(number=n) for n in range(100, 200)), ordered=True)
        print("in order:", report.confirmed)

        # In batches of 50, a batch closed after 10 s though it is not full.
        async for report in app.publish_batches(
            (Ship(number=n) for n in range(200, 300)), count=50, within=10
        ):
            print("a batch:", report.confirmed)

        # Written now, its confirm awaited later.
        confirm = await app.submit(Ship(number=300))
        await confirm

        # All of them or none.
        async with app.transaction() as tx:
            await tx.publish(Ship(number=301))
            await tx.publish(Ship(number=302))
        print("published:", app.statistics().publisher.confirmed)


if __name__ == "__main__":
    asyncio.run(main())
