"""For FastStream's users: a handler with a dependency, whose result is an event for others, and a remote call.

The broker runs in this process unless AMQP_URL names another.
"""

import asyncio
from typing import Annotated

from warren.sdk import App, Depends, Event, Request, Retry


class OrderPlaced(Event, exchange="orders", key="order.placed"):
    order_id: str


class OrderBilled(Event, exchange="orders", key="order.billed"):
    order_id: str
    cents: int


class GetPrice(Request[int], queue="prices"):
    order_id: str


app = App()
done = asyncio.Event()


def currency() -> str:
    return "EUR"


@app.handle(GetPrice)
async def price(request: GetPrice) -> int:
    return 990


@app.handle(OrderPlaced, queue="billing", retry=Retry(3).then("5s", "1m"))
async def bill(order: OrderPlaced, code: Annotated[str, Depends(currency)]) -> None:
    cents = await app.call(GetPrice(order_id=order.order_id))
    print(f"{order.order_id}: {cents} cents in {code}")
    await app.publish(OrderBilled(order_id=order.order_id, cents=cents))  # before the acknowledgement


@app.handle(OrderBilled, queue="mail")
async def mail(order: OrderBilled) -> None:
    print(f"{order.order_id}: mail sent")
    done.set()


async def main() -> None:
    async with app:  # in a service: warren run shop:app
        await app.publish(OrderPlaced(order_id="42"))
        await done.wait()


if __name__ == "__main__":
    asyncio.run(main())
