"""Confirms in batches: one wait for many messages.

The original publishes the whole batch again when one message of it was not confirmed, and makes duplicates
of all the others; or it never closes the last batch, which was not full. Here a report says what was not
confirmed, and only that is published again.
"""

import asyncio

from warren.sdk import App, Queue

app = App()
app.declare(Queue("literature.batches"))


async def main() -> None:
    messages = [b"%d" % number for number in range(250)]
    async with app:
        sizes = []
        async for report in app.publish_batches(
            messages, count=100, within=None, key="literature.batches", on_error="report"
        ):
            while report.failures:
                report = await app.publish_again(report, on_error="report")
            sizes.append(report.total)
        print("batches of", sizes)


if __name__ == "__main__":
    asyncio.run(main())
