"""Delay ladder: a message waits in the queue of its level, and is handled when its time has come.

The original publishes all delays to one queue, each with an `expiration` of its own: a broker expires only
at the head of a queue, so that five seconds behind an hour take an hour. Or it uses a queue a message.
Here each level has one queue with one TTL.
"""

import asyncio

from warren.patterns import Ladder
from warren.sdk import App, Message


class Check(Message):
    what: str


app = App()
ladder = Ladder("literature.ladder", "100ms", "500ms", "1s")  # in books 5 s, 10 s, 30 s, 1 min ... 1 h
app.include(ladder)
done = asyncio.Event()

for step in ladder.steps:

    @app.handle(Check, queue=ladder.queue(step))
    async def check(message: Check) -> None:
        print("checked after", message.what)
        if message.what == "1000 ms":
            done.set()


async def main() -> None:
    async with app:
        for level in (1000, 500, 100):  # the longest first, and it holds up nobody
            await ladder.publish(Check(what=f"{level} ms"), f"{level}ms")
        await done.wait()


if __name__ == "__main__":
    asyncio.run(main())
