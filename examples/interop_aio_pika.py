"""One queue each of aio-pika and of Warren, bound to the same exchange of the same broker; both publish."""

import asyncio
import json
from uuid import uuid4

import aio_pika

from warren.broker import Broker
from warren.sdk import App, Event


class OrderPlaced(Event, exchange="orders", key="order.placed"):
    order_id: str


async def main() -> None:
    async with Broker() as broker:
        app, orders = App(broker.url), asyncio.Queue[str]()

        @app.handle(OrderPlaced, queue="billing")
        async def bill(order: OrderPlaced) -> None:
            await orders.put(f"Warren: order {order.order_id}")

        async def mail(message: aio_pika.abc.AbstractIncomingMessage) -> None:
            async with message.process():
                await orders.put(f"aio-pika: order {json.loads(message.body)['order_id']}, {message.type}")

        connection = await aio_pika.connect_robust(broker.url)
        async with app, connection, connection.channel(on_return_raises=True) as channel:
            exchange = await channel.declare_exchange("orders", aio_pika.ExchangeType.TOPIC, durable=True)
            queue = await channel.declare_queue("mail", durable=True)
            await queue.bind(exchange, "order.placed")
            await queue.consume(mail)

            await app.publish(OrderPlaced(order_id="42"))
            print(*sorted([await orders.get(), await orders.get()]), sep="\n")

            order = aio_pika.Message(
                b'{"order_id": "43"}',
                content_type="application/json",
                type="order_placed",  # needed only if several handlers share the queue
                message_id=str(uuid4()),  # for Once
                delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
            )
            await exchange.publish(order, "order.placed")
            print(*sorted([await orders.get(), await orders.get()]), sep="\n")


if __name__ == "__main__":
    asyncio.run(main())
