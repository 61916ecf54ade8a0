"""Message evolution: a reader of version 2 of a message, beside publishers of version 1."""

import asyncio
from typing import Annotated

from pydantic import AliasChoices, Field

from warren.sdk import App, Delivery, Event


class Placed(Event, exchange="shop", key="order.placed", audience=["billing"]):
    """Version 1, as publishers that are not updated yet still send it."""

    order: str
    gift: bool = False


# --8<-- [start:reader]
class OrderPlaced(Event, exchange="shop", key="order.placed", audience=["billing"], aliases=["Placed"]):
    """Version 2: renamed; `order` is now `order_id`; `currency` is new; `gift` is gone."""

    order_id: Annotated[str, Field(validation_alias=AliasChoices("order_id", "order"))]
    currency: str = "EUR"


# --8<-- [end:reader]


async def main() -> None:
    app, both = App("memory://"), asyncio.Semaphore(0)

    @app.handle(OrderPlaced, queue="billing")
    async def bill(event: OrderPlaced, delivery: Delivery) -> None:
        print(f"{delivery.type}: {event.order_id} in {event.currency}")
        both.release()

    async with app:
        # Of a publisher of version 1:
        await app.publish(Placed(order="42", gift=True))
        # Of a publisher of version 2:
        await app.publish(OrderPlaced(order_id="43", currency="CHF"))
        # Of a publisher of version 2 while readers still know only the former name:
        # --8<-- [start:former]
        await app.publish(OrderPlaced(order_id="44"), type="placed")
        # --8<-- [end:former]
        for _ in range(3):
            await both.acquire()


if __name__ == "__main__":
    asyncio.run(main())
