"""Confirms one by one: each message waits for the one before it.

The original calls `waitForConfirms` after each message and looks at its boolean only sometimes; a nack and
a lost connection are forgotten. It takes the confirm for the proof that a queue has the message: it only
says that the broker is done with it, an unroutable one is confirmed as well. Here each publish raises what
became of it. Slow: a round trip and a sync of the disk a message.
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
