"""Publisher confirms one by one: each publish waits for its confirm before the next.

The textbook version calls `waitForConfirms` after each message and does not always check the result, so that
a nack or a lost connection goes unnoticed. It takes the confirm for proof that a queue has the message; but
the broker also confirms unroutable messages. Here each publish raises the error of its outcome. This is slow:
a round trip and a disk sync for each message.
"""

import asyncio

from warren.sdk import App, Queue

app = App()
app.declare(Queue("literature.one_by_one"))


async def main() -> None:
    async with app:
        for number in range(20):
            await app.publish(b"%d" % number, key="literature.one_by_one")
        print("confirmed:", app.statistics().publisher.confirmed)


if __name__ == "__main__":
    asyncio.run(main())
