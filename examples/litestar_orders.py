"""An order service with Litestar: the App lives in the lifespan, requests publish through the outbox in their session.

Run it: AMQP_URL=amqp://localhost uvicorn litestar_orders:web   (pip install 'warrenmq[sql]' litestar uvicorn aiosqlite)
"""

import os
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from litestar import Litestar, get, post
from litestar.di import NamedDependency, Provide
from litestar.params import FromPath
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from warren.patterns import Outbox
from warren.sdk import App, Depends, Event, Router


class OrderPlaced(Event, exchange="orders", key="order.placed"):
    order_id: int


engine = create_async_engine(
    os.environ.get("DATABASE_URL", "sqlite+aiosqlite:///shop.sqlite"), connect_args={"timeout": 60}
)
sessions = async_sessionmaker(engine)
outbox = Outbox(sessions)


async def get_session() -> AsyncIterator[AsyncSession]:
    """Open a session with one transaction, for a request or a message."""
    async with sessions.begin() as session:
        yield session


billing = Router(prefix="billing.")


@billing.handle(OrderPlaced, queue="orders")
async def bill(order: OrderPlaced, session: Annotated[AsyncSession, Depends(get_session)]) -> None:
    await session.execute(text("INSERT INTO invoices VALUES (:id)"), {"id": order.order_id})


# The service also starts while its broker is away.
messaging = App(start="background")
messaging.publishes(OrderPlaced)
messaging.include(outbox)
messaging.include(billing)


@asynccontextmanager
async def lifespan(web: Litestar) -> AsyncGenerator[None, None]:
    await create_tables()
    async with messaging:
        yield
    await engine.dispose()


@post("/orders/{order_id:int}", status_code=202)
async def place(order_id: FromPath[int]) -> dict[str, int]:
    # The transaction ends before the response is sent.
    async with sessions.begin() as session:
        await session.execute(text("INSERT INTO orders VALUES (:id)"), {"id": order_id})
        await outbox.add(session, OrderPlaced(order_id=order_id))
    return {"order_id": order_id}


@get("/invoices")
async def invoices(session: NamedDependency[AsyncSession]) -> list[int]:
    return list((await session.execute(text("SELECT id FROM invoices ORDER BY id"))).scalars())


@get("/health")
async def health() -> dict[str, str]:
    return {"messaging": messaging.state.value}


async def create_tables() -> None:
    async with engine.begin() as connection:
        for table in ("orders", "invoices"):
            await connection.execute(text(f"CREATE TABLE IF NOT EXISTS {table} (id integer primary key)"))


web = Litestar([place, invoices, health], lifespan=[lifespan], dependencies={"session": Provide(get_session)})
