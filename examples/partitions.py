"""Partitions: changes of one order are handled in their order, different orders concurrently.

Run it: python examples/partitions.py   (AMQP_URL chooses a broker; without it nothing else is needed)
"""

import asyncio
import random

from warren.patterns import Partitions
from warren.sdk import App, Event

orders = Partitions("orders", 8, key=lambda change: change.order_id)


class OrderChanged(Event, exchange=orders.exchange):
    order_id: str
    what: str


@orders.handle(OrderChanged)
async def follow(change: OrderChanged) -> None:
    await asyncio.sleep(random.random() / 100)  # handlers take different times
    history.setdefault(change.order_id, []).append(change.what)
    if sum(map(len, history.values())) == 12:
        done.set()


app = App()
app.include(orders)  # also in Apps that only publish
history: dict[str, list[str]] = {}
done = asyncio.Event()


async def main() -> None:
    async with app:
        for what in ("placed", "paid", "shipped"):
            for number in range(40, 44):
                await orders.publish(OrderChanged(order_id=f"{number}", what=what))
        await done.wait()
    for order_id in sorted(history):
        print(order_id, *history[order_id])


if __name__ == "__main__":
    asyncio.run(main())
