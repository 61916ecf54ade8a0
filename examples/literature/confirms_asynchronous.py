"""Asynchronous publisher confirms: a window of messages is in flight, and each has its own confirm.

The textbook version adds a message to the unconfirmed set after its publish (when the confirm may have
arrived already), ignores `multiple`, republishes nacked messages within the callback, and does not limit the
messages in flight. Here a message is in the set before its first byte is written, the window is limited, and
unconfirmed messages of a lost connection are published again with their id.
"""

import asyncio

from warren.sdk import App, Queue

app = App(window=100)
app.declare(Queue("literature.asynchronous"))


async def main() -> None:
    async with app:
        # One by one, with a future for each confirm ...
        confirms = [await app.submit(b"%d" % number, key="literature.asynchronous") for number in range(50)]
        await asyncio.gather(*confirms)
        # ... or all at once.
        report = await app.publish_many(
            [b"%d" % number for number in range(950)], key="literature.asynchronous"
        )
        print("confirmed:", len(confirms) + report.total)


if __name__ == "__main__":
    asyncio.run(main())
