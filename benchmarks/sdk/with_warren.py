"""Client for the comparison: Warren's SDK; the environment variable `CAPTURE` names a stream for captured events."""

from __future__ import annotations

import os
from decimal import Decimal

from benchmarks.sdk.load import CALLS, WINDOW, Handled, Task, in_parallel, main
from warren.sdk import App, Capture, Command, Queue, Request


def queue_of(task: Task) -> Queue:
    return Queue(task.queue, type="classic", dead_letter_exchange=None)


def app_of(task: Task) -> App:
    stream = os.environ.get("CAPTURE")
    return App(task.url, capture=Capture(stream=stream) if stream else None)


async def publish(task: Task) -> int:
    class Placed(Command, queue=queue_of(task)):
        order_id: str
        total: Decimal

    async with app_of(task) as app:
        return await in_parallel(
            WINDOW, task.seconds, lambda: app.publish(Placed(order_id="42", total=Decimal("9.90")))
        )


async def handle(task: Task) -> int:
    class Placed(Command, queue=queue_of(task)):
        order_id: str
        total: Decimal

    app, handled = app_of(task), Handled()

    @app.handle(Placed, concurrency=WINDOW)
    async def placed(order: Placed) -> None:
        handled.count += 1

    async with app:
        sent = await in_parallel(
            WINDOW, task.seconds, lambda: app.publish(Placed(order_id="42", total=Decimal("9.90")))
        )
        await handled.reaches(sent)
    return sent


async def thread(task: Task) -> int:
    class Placed(Command, queue=queue_of(task)):
        order_id: str
        total: Decimal

    app, handled = app_of(task), Handled()

    @app.handle(Placed, concurrency=WINDOW)
    def placed(order: Placed) -> None:
        handled.one()

    async with app:
        sent = await in_parallel(
            WINDOW, task.seconds, lambda: app.publish(Placed(order_id="42", total=Decimal("9.90")))
        )
        await handled.reaches(sent)
    return sent


async def call(task: Task) -> int:
    class GetLength(Request[int], queue=queue_of(task)):
        text: str

    app = app_of(task)

    @app.handle(GetLength, concurrency=CALLS)
    async def length(request: GetLength) -> int:
        return len(request.text)

    async with app:
        return await in_parallel(CALLS, task.seconds, lambda: app.call(GetLength(text="four")))


if __name__ == "__main__":
    main({"publish": publish, "handle": handle, "thread": thread, "call": call})
