"""Topology as data: compare it with a broker, create it, and list configurations that could lose messages."""

import asyncio
from datetime import timedelta

from warren.broker import Broker
from warren.sdk import Binding, Declarable, Exchange, Queue
from warren.sdk.planning import Planner, Status, risks

DECLARED: list[Declarable] = [
    Exchange("orders", alternate_exchange="orders.unrouted"),
    Exchange("orders.unrouted", type="fanout"),
    Queue("orders.unrouted"),  # durable, quorum, a delivery limit, dead-lettered to orders.unrouted.dead
    Queue("billing", message_ttl=timedelta(hours=1), max_length=100_000),
    Queue("urgent", max_priority=10),  # classic: quorum queues do not have ten priorities
    Queue("history", type="stream", max_age=timedelta(days=30)),
    Binding("orders", "billing", "order.*"),
    Binding("orders.unrouted", "orders.unrouted"),
]


async def main() -> None:
    async with Broker() as broker, Planner(broker.url) as planner:
        plan = await planner.plan(DECLARED)
        print(len(plan.of(Status.MISSING)), "missing")
        made = await planner.apply(plan)
        print(len(made), "made, the last:", made[-1])

        other = Queue("billing", message_ttl=timedelta(hours=2), max_length=100_000)
        plan = await planner.plan([other])
        (differs,) = plan.of(Status.DIFFERS)
        print(differs.name, "differs:", *differs.differences)

    for risk in risks(DECLARED):
        print(f"{risk.kind.value}: {risk.subject} {risk.text}")


asyncio.run(main())
