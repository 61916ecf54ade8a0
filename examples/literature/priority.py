"""Priority queue: urgent messages overtake those that wait.

The textbook version publishes with priorities to a queue that was declared without `x-max-priority`, where
they have no effect; or while a consumer with unlimited prefetch empties the queue, and prefetched messages
are not sorted any more. It declares 255 priorities, each of which costs memory. And it claims that the broker
balances priorities; in fact the order is strict, and less urgent messages may starve (`WorkQueue` prevents
that).
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
        await publisher.publish(Job(name="now"), priority=99)  # is treated as the queue's maximum

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
