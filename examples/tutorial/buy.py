"""Ask the price service, then place an order: python buy.py lamp 2"""

import asyncio
import sys
from argparse import ArgumentParser
from uuid import uuid4

from orders import OrderPlaced
from prices import GetPrice
from warren.sdk import App, RemoteError


async def buy(item: str, quantity: int) -> None:
    async with App() as app:
        try:
            price = await app.call(GetPrice(item=item, quantity=quantity), timeout=60)
        except RemoteError as error:
            sys.exit(f"not bought: {error.message}")
        await app.publish(OrderPlaced(order_id=str(uuid4()), email="ann@example.com"))
        print(f"bought {quantity} x {item} for {price.total}")


if __name__ == "__main__":
    arguments = ArgumentParser(description="Ask for the price, then place an order.")
    arguments.add_argument("item")
    arguments.add_argument("quantity", type=int)
    given = arguments.parse_args()
    asyncio.run(buy(given.item, given.quantity))
