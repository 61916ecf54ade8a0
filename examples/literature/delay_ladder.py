"""Delay ladder: a message waits in the queue of its delay, and is handled when the delay has passed.

The textbook version publishes all delays to one queue, each with its own `expiration`: a broker expires
messages only at the head of a queue, so that five seconds behind an hour take an hour. Or it declares a queue
for each message. Here each delay has one queue with one TTL. A ladder needs AMQP_URL; memory:// will do.
"""

import asyncio

from warren.patterns import DelayLadder
from warren.sdk import App, Message


class Check(Message):
    what: str


app = App()
ladder = DelayLadder("literature.ladder", "100ms", "500ms", "1s")  # usually 5 s, 10 s, 30 s, 1 min ... 1 h
app.include(ladder)
checked: list[str] = []
done = asyncio.Event()

for step in ladder.steps:

    @app.handle(Check, queue=ladder.queue(step))
    async def check(message: Check) -> None:
        print("checked after", message.what)
        checked.append(message.what)
        if len(checked) == len(ladder.steps):
            done.set()


async def main() -> None:
    async with app:
        # The longest delay first: it does not hold up the others.
        await asyncio.gather(
            *(ladder.publish(Check(what=f"{level} ms"), f"{level}ms") for level in (1000, 500, 100))
        )
        await done.wait()


if __name__ == "__main__":
    asyncio.run(main())
