"""Idempotent handling in a database transaction: a payment and the record of its message are committed together.

Run it: python examples/transactional_once.py   (AMQP_URL and DATABASE_URL choose a broker and a database, such as
postgresql+asyncpg://...; without them nothing else is needed)
"""

import asyncio
import os
import tempfile
from typing import Annotated

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from warren.patterns import TransactionalOnce, current_session
from warren.sdk import App, Depends, Request


class Pay(Request[str], queue="payments"):
    order_id: str
    cents: int


engine = create_async_engine(
    os.environ.get("DATABASE_URL") or f"sqlite+aiosqlite:///{tempfile.mkdtemp()}/shop.sqlite"
)
sessions = async_sessionmaker(engine)
app = App()


@app.handle(Pay, once=TransactionalOnce(sessions, key=lambda payment: payment.order_id))
async def pay(payment: Pay, session: Annotated[AsyncSession, Depends(current_session)]) -> str:
    await session.execute(text("INSERT INTO payments VALUES (:order_id, :cents)"), payment.model_dump())
    return f"receipt for order {payment.order_id}"


async def main() -> None:
    async with engine.begin() as connection:
        await connection.execute(text("CREATE TABLE IF NOT EXISTS payments (order_id text, cents int)"))
    async with app:
        print(await app.call(Pay(order_id="42", cents=990)))
        print(await app.call(Pay(order_id="42", cents=990)))
    async with sessions() as session:
        print("payments:", (await session.execute(text("SELECT count(*) FROM payments"))).scalar_one())
    await engine.dispose()


if __name__ == "__main__":
    asyncio.run(main())
