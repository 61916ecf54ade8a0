"""For users of Spring AMQP: a typed event with camelCase JSON, a listener with retries, and a remote call.

The broker runs in this process unless AMQP_URL names another.
"""

import asyncio

from pydantic.alias_generators import to_camel

from warren.sdk import App, Event, Request, Retry


class OrderPlaced(
    Event, exchange="orders", key="order.placed", alias_generator=to_camel, populate_by_name=True
):
    order_id: str  # "orderId" in the JSON, as Jackson writes it


class GetStock(Request[int], queue="stock"):
    sku: str


app = App()
billed = asyncio.Event()


@app.handle(OrderPlaced, queue="billing", concurrency=10, prefetch=20, retry=Retry(3).then("5s", "1m"))
async def bill(order: OrderPlaced) -> None:
    print("billed", order.order_id)
    billed.set()


@app.handle(GetStock)
async def stock(request: GetStock) -> int:  # a listener method with a return value
    return 7


async def main() -> None:
    async with app:
        await app.publish(OrderPlaced(order_id="42"))  # rabbitTemplate.convertAndSend(...)
        await billed.wait()
        print("stock", await app.call(GetStock(sku="lamp")))  # convertSendAndReceive(...)


if __name__ == "__main__":
    asyncio.run(main())
