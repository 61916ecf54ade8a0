"""Beside Celery: run the task `shop.charge` of Celery's clients, and send `shop.mail` to Celery's workers.

The broker runs in this process unless AMQP_URL names another.
"""

import asyncio

from warren.patterns.celery import CeleryBridge
from warren.sdk import App, Retry

app, bridge = App(), CeleryBridge()
app.include(bridge)
charged = asyncio.Event()


@bridge.remote("shop.mail", queue="mail")
def send_mail(order_id: str, text: str) -> str:
    raise NotImplementedError  # never called: it gives the task its parameters and result type


@bridge.task("shop.charge", queue="charges", retry=Retry(1).then("5s", "1m").on(ConnectionError))
async def charge(order_id: str, cents: int) -> str:
    print(f"shop.charge: order {order_id}, {cents} cents")
    await send_mail.delay(order_id, text=f"charged {cents}")  # await its .get() for the worker's result
    charged.set()
    return f"charged {cents}"


@bridge.remote("shop.charge", queue="charges")
def order_charge(order_id: str, cents: int) -> str:
    raise NotImplementedError


async def main() -> None:
    async with app:  # in a service: warren run interop_celery:app
        result = await order_charge.delay("42", 990)  # as a Celery client does
        print(await result.get(timeout="10s"))


if __name__ == "__main__":
    asyncio.run(main())
