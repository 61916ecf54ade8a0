"""Exchange messages with MassTransit in its JSON envelope, through the exchange that it names after the type.

The broker runs in this process unless AMQP_URL names another.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

from pydantic import BaseModel, Field
from pydantic.alias_generators import to_camel

from warren.sdk import App, Binding, Exchange, Outgoing, Queue


class Contract(BaseModel, alias_generator=to_camel, populate_by_name=True):
    pass


class OrderPlaced(Contract):
    order_id: str


class Envelope(Contract):
    message: OrderPlaced
    message_type: list[str]
    message_id: str = Field(default_factory=lambda: str(uuid4()))
    headers: dict[str, Any] = {}


CONTRACT = "Shop.Contracts:OrderPlaced"  # namespace and class of the .NET record
app = App()
app.declare(Exchange(CONTRACT, type="fanout"), Queue("billing"), Binding(CONTRACT, "billing"))
billed = asyncio.Event()


async def set_content_type(outgoing: Outgoing, call_next: Callable[[Outgoing], Awaitable[None]]) -> None:
    if outgoing.exchange == CONTRACT:
        outgoing.set("content_type", "application/vnd.masstransit+json")
    await call_next(outgoing)


app.middleware(publish=set_content_type)


@app.handle(Envelope, queue="billing")
async def bill(envelope: Envelope) -> None:
    print("billed", envelope.message.order_id, *envelope.message_type)
    billed.set()


async def main() -> None:
    async with app:
        envelope = Envelope(message=OrderPlaced(order_id="42"), message_type=[f"urn:message:{CONTRACT}"])
        await app.publish(envelope, exchange=CONTRACT, message_id=envelope.message_id)
        await billed.wait()


if __name__ == "__main__":
    asyncio.run(main())
