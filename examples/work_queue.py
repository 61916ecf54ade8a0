"""Work queue with priorities: two processes render pages, urgent ones first, without starving the others.

Run it: python examples/work_queue.py   (AMQP_URL chooses a broker; without it nothing else is needed)
"""

import asyncio

from warren.patterns import WorkQueue
from warren.sdk import App, Message


class Render(Message):
    page: int


async def main() -> None:
    publisher = App()
    done: list[int] = []
    all_done = asyncio.Event()
    async with publisher:
        workers = [App(str(publisher.url)) for _ in range(2)]  # in production each is a process: `app.run()`
        queues: list[WorkQueue] = []
        for app in workers:
            # After at most 10 urgent pages, one of the others is rendered.
            work = WorkQueue("render", priorities=3, concurrency=1, bypass=10)
            app.include(work)
            queues.append(work)

            @work.handle(Render)
            async def render(command: Render) -> None:
                done.append(command.page)
                if len(done) == 30:
                    all_done.set()

        async with workers[0], workers[1]:
            for page in range(10):
                for priority in range(3):
                    await queues[0].put(Render(page=page), priority=priority)
            await all_done.wait()
        print("rendered", len(done))


if __name__ == "__main__":
    asyncio.run(main())
