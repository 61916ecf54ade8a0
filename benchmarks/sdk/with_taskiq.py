"""Client for the comparison: taskiq-aio-pika with its receiver in this process; it has no results over AMQP, and so no
calls."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from decimal import Decimal

from pydantic import BaseModel
from taskiq.api import run_receiver_task
from taskiq_aio_pika import AioPikaBroker, Exchange, Queue, QueueType

from benchmarks.sdk.load import WINDOW, Handled, Task, in_parallel, main


class Placed(BaseModel):
    order_id: str
    total: Decimal


def broker_of(task: Task) -> AioPikaBroker:
    name = f"{task.queue}.taskiq"
    return AioPikaBroker(
        task.url,
        qos=2 * WINDOW,
        exchange=Exchange(name=name, declare=True),
        task_queues=[Queue(name=name, type=QueueType.CLASSIC, declare=True, durable=True)],
        dead_letter_queue=Queue(name=f"{name}.dead", type=QueueType.CLASSIC, declare=True, durable=True),
    )


async def publish(task: Task) -> int:
    broker = broker_of(task)

    @broker.task(task_name="placed")  # type: ignore[untyped-decorator]
    async def placed(order: Placed) -> None: ...

    await broker.startup()
    try:
        return await in_parallel(
            WINDOW, task.seconds, lambda: placed.kiq(Placed(order_id="42", total=Decimal("9.90")))
        )
    finally:
        await broker.shutdown()


async def handle(task: Task) -> int:
    broker, handled = broker_of(task), Handled()

    @broker.task(task_name="placed")  # type: ignore[untyped-decorator]
    async def placed(order: Placed) -> None:
        handled.one()

    broker.is_worker_process = True
    await broker.startup()
    receiving = asyncio.create_task(run_receiver_task(broker, max_async_tasks=WINDOW))
    try:
        sent = await in_parallel(
            WINDOW, task.seconds, lambda: placed.kiq(Placed(order_id="42", total=Decimal("9.90")))
        )
        await handled.reaches(sent)
    finally:
        receiving.cancel()
        with suppress(asyncio.CancelledError):
            await receiving
        await broker.shutdown()
    return sent


if __name__ == "__main__":
    main({"publish": publish, "handle": handle})
