"""Handlers: dependencies, headers, and outcomes that acknowledge or dead-letter a message."""

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated

from warren.sdk import Ack, App, Command, DeadLetter, Delivery, Depends, Header


class Bill(Command, queue="billing"):
    order_id: str
    total: int


class Ledger:
    """A ledger that handlers write to."""

    def __init__(self) -> None:
        self.entries: list[str] = []


async def open_ledger() -> AsyncIterator[Ledger]:
    """Open a ledger for each message, and close it afterwards, also if the handler raised."""
    ledger = Ledger()
    yield ledger
    print("written:", ", ".join(ledger.entries) or "nothing")


app = App()
dead_lettered = asyncio.Event()


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
async def show_dead_letter(body: bytes, delivery: Delivery) -> None:
    print("dead:", delivery.headers["warren-dead-reason"], delivery.headers["warren-dead-error"])
    dead_lettered.set()


async def main() -> None:
    async with app:
        await app.publish(Bill(order_id="42", total=9), headers={"tenant": "acme"})
        await app.publish(Bill(order_id="43", total=-1))
        await dead_lettered.wait()


if __name__ == "__main__":
    asyncio.run(main())
