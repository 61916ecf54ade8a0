"""Resequencer: changes of an order are handled in the order of their versions, whatever order they arrive in.

Run it: python examples/resequencer.py   (AMQP_URL chooses a broker; without it nothing else is needed)
"""

import asyncio
import tempfile

from warren.patterns import Resequencer, SqliteStore
from warren.sdk import App, Event


class OrderChanged(Event, exchange="orders", key="order.changed"):
    order_id: str
    version: int  # the row's version in the orders database
    what: str


resequencer = Resequencer(
    "order-history",
    store=SqliteStore(f"{tempfile.mkdtemp()}/positions.sqlite"),  # with several processes: RedisStore(url)
    key=lambda change: change.order_id,
    number=lambda change: change.version,
)


@resequencer.handle(OrderChanged)
async def write_down(change: OrderChanged) -> None:
    print(f"order {change.order_id}: {change.what}")
    if change.version == 3:
        done.set()


app = App()
app.include(resequencer)
done = asyncio.Event()


async def main() -> None:
    async with app:
        for version, what in ((3, "shipped"), (1, "placed"), (1, "placed"), (2, "paid")):
            await app.publish(OrderChanged(order_id="42", version=version, what=what))
        await done.wait()


if __name__ == "__main__":
    asyncio.run(main())
