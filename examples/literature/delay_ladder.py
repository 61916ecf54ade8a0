"""Delay ladder: a message waits in the queue of its level, and is handled when its time has come.

The original publishes all delays to one queue, each with an `expiration` of its own: a broker expires only
at the head of a queue, so that five seconds behind an hour take an hour. Or it uses a queue a message.
Here each level has one queue with one TTL.
"""

import asyncio

from warren.patterns import DelayLadder
from warren.sdk import App, Message


class Check(Message):
    what: str


app = App()
ladder = DelayLadder("literature.ladder", "100ms", "500ms", "1s")  # in books 5 s, 10 s, 30 s, 1 min ... 1 h
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
        # The longest first, and it holds up nobody.
        await asyncio.gather(
            *(ladder.publish(Check(what=f"{level} ms"), f"{level}ms") for level in (1000, 500, 100))
        )
        await done.wait()


if __name__ == "__main__":
    asyncio.run(main())
