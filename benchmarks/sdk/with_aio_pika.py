"""Client for the comparison: raw aio-pika as a careful user writes it, with awaited confirms and mandatory publishes."""

from __future__ import annotations

from decimal import Decimal

import aio_pika
from aio_pika import DeliveryMode, Message
from aio_pika.abc import AbstractIncomingMessage
from aio_pika.patterns import JsonRPC
from pydantic import BaseModel

from benchmarks.sdk.load import CALLS, WINDOW, Handled, Task, in_parallel, main


class Placed(BaseModel):
    order_id: str
    total: Decimal


def message() -> Message:
    body = Placed(order_id="42", total=Decimal("9.90")).model_dump_json().encode()
    return Message(body, content_type="application/json", delivery_mode=DeliveryMode.PERSISTENT)


async def publish(task: Task) -> int:
    async with await aio_pika.connect_robust(task.url) as connection:
        channel = await connection.channel(on_return_raises=True)
        exchange = channel.default_exchange
        return await in_parallel(WINDOW, task.seconds, lambda: exchange.publish(message(), task.queue))


async def handle(task: Task) -> int:
    handled = Handled()

    async def placed(delivery: AbstractIncomingMessage) -> None:
        async with delivery.process():
            Placed.model_validate_json(delivery.body)
            handled.count += 1

    async with (
        await aio_pika.connect_robust(task.url) as publishing,
        await aio_pika.connect_robust(task.url) as consuming,
    ):
        channel = await consuming.channel()
        await channel.set_qos(2 * WINDOW)
        await (await channel.get_queue(task.queue)).consume(placed)
        exchange = (await publishing.channel(on_return_raises=True)).default_exchange
        sent = await in_parallel(WINDOW, task.seconds, lambda: exchange.publish(message(), task.queue))
        await handled.reaches(sent)
    return sent


async def call(task: Task) -> int:
    async def length(*, text: str) -> int:
        return len(text)

    async with await aio_pika.connect_robust(task.url) as connection:
        channel = await connection.channel()
        await channel.set_qos(2 * CALLS)
        rpc = await JsonRPC.create(channel)
        await rpc.register(f"{task.queue}.rpc", length, auto_delete=True)
        return await in_parallel(CALLS, task.seconds, lambda: rpc.call(f"{task.queue}.rpc", {"text": "four"}))


if __name__ == "__main__":
    main({"publish": publish, "handle": handle, "call": call})
