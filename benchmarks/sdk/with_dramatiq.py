"""Client for the comparison: Dramatiq with confirms; it has no results over AMQP, and so no calls."""

from __future__ import annotations

from decimal import Decimal

import dramatiq
from dramatiq.brokers.rabbitmq import RabbitmqBroker
from pydantic import BaseModel

from benchmarks.sdk.load import THREADS, Handled, Task, in_threads, main


class Placed(BaseModel):
    order_id: str
    total: Decimal


ORDER = Placed(order_id="42", total=Decimal("9.90")).model_dump(mode="json")


def broker_of(task: Task) -> RabbitmqBroker:
    broker = RabbitmqBroker(url=task.url, confirm_delivery=True)
    dramatiq.set_broker(broker)
    return broker


async def publish(task: Task) -> int:
    broker = broker_of(task)
    placed = dramatiq.actor(
        lambda order: None, actor_name="placed", queue_name=f"{task.queue}.dramatiq", broker=broker
    )
    return await in_threads(task.seconds, lambda: placed.send(ORDER))


async def handle(task: Task) -> int:
    broker, handled = broker_of(task), Handled()

    @dramatiq.actor(queue_name=f"{task.queue}.dramatiq", broker=broker)  # type: ignore[untyped-decorator]
    def placed(order: dict[str, str]) -> None:
        Placed.model_validate(order)
        handled.one()

    dramatiq.Worker(broker, worker_threads=THREADS).start()  # Its threads end with the process.
    sent = await in_threads(task.seconds, lambda: placed.send(ORDER))
    await handled.reaches(sent)
    return sent


if __name__ == "__main__":
    main({"publish": publish, "handle": handle})
