"""Client for the comparison: FastStream with its defaults, except for a prefetch, which is unlimited by default."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal

from faststream.rabbit import Channel, RabbitBroker, RabbitQueue
from pydantic import BaseModel

from benchmarks.sdk.load import CALLS, WINDOW, Handled, Task, in_parallel, main


class Placed(BaseModel):
    order_id: str
    total: Decimal


class GetLength(BaseModel):
    text: str


async def publish(task: Task) -> int:
    async with RabbitBroker(task.url, logger=None) as broker:
        await broker.start()
        return await in_parallel(
            WINDOW,
            task.seconds,
            lambda: broker.publish(
                Placed(order_id="42", total=Decimal("9.90")), queue=task.queue, persist=True
            ),
        )


async def handle(task: Task) -> int:
    handled = Handled()

    async def placed(order: Placed) -> None:
        handled.count += 1

    return await _handle(task, placed, handled)


async def thread(task: Task) -> int:
    """Handle in threads: FastStream runs plain functions in those of AnyIO."""
    handled = Handled()

    def placed(order: Placed) -> None:
        handled.one()

    return await _handle(task, placed, handled)


async def _handle(task: Task, placed: Callable[[Placed], object], handled: Handled) -> int:
    broker = RabbitBroker(task.url, logger=None)
    subscribed = broker.subscriber(
        RabbitQueue(task.queue, durable=True), channel=Channel(prefetch_count=2 * WINDOW)
    )
    subscribed(placed)

    async with broker:
        await broker.start()
        sent = await in_parallel(
            WINDOW,
            task.seconds,
            lambda: broker.publish(
                Placed(order_id="42", total=Decimal("9.90")), queue=task.queue, persist=True
            ),
        )
        await handled.reaches(sent)
    return sent


async def call(task: Task) -> int:
    broker = RabbitBroker(task.url, logger=None)

    async def length(request: GetLength) -> int:
        return len(request.text)

    subscribed = broker.subscriber(
        RabbitQueue(task.queue, durable=True), channel=Channel(prefetch_count=2 * CALLS)
    )
    subscribed(length)

    async with broker:
        await broker.start()
        return await in_parallel(
            CALLS,
            task.seconds,
            lambda: broker.request(GetLength(text="four"), queue=task.queue, timeout=30.0),
        )


if __name__ == "__main__":
    main({"publish": publish, "handle": handle, "thread": thread, "call": call})
