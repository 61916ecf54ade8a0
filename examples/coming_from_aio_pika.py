"""For users of aio-pika and pika: an exchange, a queue, a binding, a confirmed publish and a consumer.

The broker runs in this process unless AMQP_URL names another.
"""

import asyncio

from pydantic import BaseModel

from warren.sdk import App, Binding, Delivery, Exchange, Queue


class Order(BaseModel):
    order_id: str


app = App()
app.declare(Exchange("orders"), Queue("billing"), Binding("orders", "billing", "order.*"))  # durable
billed = asyncio.Event()


@app.handle(Order, queue="billing", prefetch=20)  # or bytes, str, dict
async def bill(order: Order, delivery: Delivery) -> None:  # acknowledged when it returns
    print(f"billed {order.order_id}, key {delivery.routing_key}")
    billed.set()


async def main() -> None:
    async with app:  # reconnects, declares and consumes again
        await app.publish({"order_id": "42"}, exchange="orders", key="order.placed")  # until the confirm
        await billed.wait()


if __name__ == "__main__":
    asyncio.run(main())
