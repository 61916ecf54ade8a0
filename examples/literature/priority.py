"""Priority: what is urgent overtakes what waits.

The original publishes with priorities to a queue that was declared without `x-max-priority`, where they
mean nothing; or while a consumer with an unlimited prefetch empties the queue as fast as it fills: what a
consumer holds is not sorted any more. It declares 255 levels, each of which costs memory. And it says that
the broker balances them: it is strict, what is less urgent may wait for ever (`WorkQueue` does not let
it).
"""

import asyncio

from warren.sdk import App, Command, Queue


class Job(Command, queue=Queue("literature.jobs", max_priority=10)):
    name: str


async def main() -> None:
    done = asyncio.Event()
    async with App() as publisher:
        await publisher.publish(Job(name="whenever"))
        await publisher.publish(Job(name="soon"), priority=5)
        await publisher.publish(Job(name="also soon"), priority=5)
        await publisher.publish(Job(name="now"), priority=99)  # above the maximum is the maximum

        worker = App(str(publisher.url))

        @worker.handle(Job, concurrency=1)
        async def work(job: Job) -> None:
            print(job.name)
            if job.name == "whenever":
                done.set()

        async with worker:
            await done.wait()


if __name__ == "__main__":
    asyncio.run(main())
