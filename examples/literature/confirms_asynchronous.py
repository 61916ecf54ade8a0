"""Confirms asynchronously: a window of messages is under way, and each hears of its own confirm.

The original keeps the unconfirmed in a set that it fills after it published (the confirm may be there
before), ignores `multiple`, publishes again what was nacked from within the callback, and never bounds how
much is under way. Here a message is in the ordered set before its first byte is written, the window bounds
it, and what a lost connection left open is published again with its id.
"""

import asyncio

from warren.sdk import App, Queue

app = App(window=100)
app.declare(Queue("literature.asynchronous"))


async def main() -> None:
    async with app:
        # One by one, with a future each ...
        confirms = [await app.submit(b"%d" % number, key="literature.asynchronous") for number in range(50)]
        await asyncio.gather(*confirms)
        # ... or all at once.
        report = await app.publish_many(
            [b"%d" % number for number in range(950)], key="literature.asynchronous"
        )
        print("confirmed:", len(confirms) + report.total)


if __name__ == "__main__":
    asyncio.run(main())
