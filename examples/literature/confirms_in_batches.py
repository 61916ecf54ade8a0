"""Publisher confirms in batches: one wait for many messages.

The textbook version republishes the whole batch if one message was not confirmed, which duplicates all
others, or never completes the last, incomplete batch. Here a report lists the messages that were not
confirmed, and only those are published again.
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
