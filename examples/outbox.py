"""Transactional outbox: an order and its event are one database transaction, and a rollback publishes nothing.

Run it: AMQP_URL=memory:// python examples/outbox.py   (memory:// is a broker in this process; or name one.
DATABASE_URL chooses a database, such as postgresql+asyncpg://...; without it a file is used)
"""

import asyncio
import os
import tempfile

from sqlalchemy import text
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

from warren.patterns import Outbox
from warren.sdk import App, Event


class OrderPlaced(Event, exchange="orders", key="order.placed"):
    order_id: str


engine = create_async_engine(
    os.environ.get("DATABASE_URL") or f"sqlite+aiosqlite:///{tempfile.mkdtemp()}/shop.sqlite"
)
sessions = async_sessionmaker(engine)
# --8<-- [start:pattern]
outbox = Outbox(sessions, ordered_by=lambda event: event.order_id)
app = App()
app.publishes(OrderPlaced)
app.include(outbox)


@app.handle(OrderPlaced, queue="billing")
async def bill(order: OrderPlaced) -> None:
    print(f"order {order.order_id}: billed")
    billed.set()


async def place(order_id: str, *, stock: int) -> None:
    async with sessions.begin() as session:
        await session.execute(text("INSERT INTO orders VALUES (:id)"), {"id": order_id})
        await outbox.add(session, OrderPlaced(order_id=order_id))
        if not stock:
            raise LookupError(f"order {order_id}: out of stock")


# --8<-- [end:pattern]


billed = asyncio.Event()


async def main() -> None:
    async with engine.begin() as connection:
        await connection.execute(text("CREATE TABLE IF NOT EXISTS orders (id text)"))
    async with app:
        try:
            await place("41", stock=0)
        except LookupError as error:
            print(error)
        await place("42", stock=7)
        await billed.wait()
    await engine.dispose()


if __name__ == "__main__":
    asyncio.run(main())
