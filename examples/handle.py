"""Handling: what a handler takes beside its message, and how it says what becomes of the message."""

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated

from warren.sdk import Ack, App, Command, DeadLetter, Delivery, Depends, Header


class Bill(Command, queue="billing"):
    order_id: str
    total: int


class Ledger:
    """What a handler writes to."""

    def __init__(self) -> None:
        self.entries: list[str] = []


async def open_ledger() -> AsyncIterator[Ledger]:
    """Made for each message, and cleaned up after it, also if the handler raised."""
    ledger = Ledger()
    yield ledger
    print("written:", ", ".join(ledger.entries) or "nothing")


app = App()
buried = asyncio.Event()


@app.handle(Bill, concurrency=1)
async def bill(
    order: Bill,
    ledger: Annotated[Ledger, Depends(open_ledger)],
    tenant: Annotated[str, Header()] = "nobody",
) -> Ack | DeadLetter:
    if order.total < 0:
        return DeadLetter("a total cannot be negative")
    ledger.entries.append(f"order {order.order_id} of {tenant}")
    return Ack()


@app.handle(bytes, queue="billing.dead")
async def bury(body: bytes, delivery: Delivery) -> None:
    print("dead:", delivery.headers["warren-dead-reason"], delivery.headers["warren-dead-error"])
    buried.set()


async def main() -> None:
    async with app:
        await app.publish(Bill(order_id="42", total=9), headers={"tenant": "acme"})
        await app.publish(Bill(order_id="43", total=-1))
        await buried.wait()


if __name__ == "__main__":
    asyncio.run(main())
