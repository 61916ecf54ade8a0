"""Task queue: workers share the work, and no task is lost if a worker dies.

The textbook version forgets one of four things, each of which loses work: a durable queue, persistent
messages, acknowledgement after the work, and a prefetch limit, without which the first worker takes the whole
backlog. It requeues failed tasks for ever. Here all four are the default; a failed task is retried and then
parked with the reason in `literature.tasks.dead`.
"""

import asyncio

from warren.sdk import App, Command, Retry


class Task(Command, queue="literature.tasks"):
    dots: str


done: list[str] = []


async def main() -> None:
    all_done = asyncio.Event()
    async with App() as publisher:
        await publisher.publish(Task(dots="bad"))
        for number in range(20):
            await publisher.publish(Task(dots="." * (number % 5)))

        workers = [App(str(publisher.url)) for _ in range(2)]  # in production each is a process: `app.run()`
        for worker in workers:

            @worker.handle(Task, concurrency=1, retry=Retry(3))  # one at a time, at most two prefetched
            async def work(task: Task) -> None:
                done.append(task.dots)
                if len(done) == 23:
                    all_done.set()
                if task.dots == "bad":
                    raise ValueError("no dots")
                await asyncio.sleep(0.001 * len(task.dots))

        async with workers[0], workers[1]:
            await all_done.wait()
    print(f"completed {len(done) - 3}, attempted the bad one {done.count('bad')} times")


if __name__ == "__main__":
    asyncio.run(main())
