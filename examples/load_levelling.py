"""Load levelling: a spike of a hundred times the usual load waits in the queue, and the workers handle it at their own pace.

Run it: python examples/load_levelling.py   (AMQP_URL chooses a broker; without it nothing else is needed)
"""

import asyncio

from warren.sdk import App, Command

SPIKE = 500


class Resize(Command, queue="resize"):
    picture: int


async def main() -> None:
    app, finished = App(), asyncio.Event()
    at_once = most_at_once = done = 0

    @app.handle(Resize, concurrency=5)  # five at a time in this process, and at most ten prefetched
    async def resize(command: Resize) -> None:
        nonlocal at_once, most_at_once, done
        at_once += 1
        most_at_once = max(most_at_once, at_once)
        await asyncio.sleep(0.001)
        at_once -= 1
        done += 1
        if done == SPIKE:
            finished.set()

    async with app:
        await app.publish_many([Resize(picture=number) for number in range(SPIKE)])
        print(f"accepted {SPIKE}")
        await finished.wait()
        print(f"done {done}, at most {most_at_once} at once")


if __name__ == "__main__":
    asyncio.run(main())
