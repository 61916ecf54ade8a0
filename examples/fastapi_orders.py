"""An order service with FastAPI: the App lives in the lifespan, requests publish through the outbox in their session.

Run it: AMQP_URL=amqp://localhost uvicorn fastapi_orders:web   (pip install 'warrenmq[sql]' fastapi uvicorn aiosqlite)
"""

import os
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, FastAPI
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from warren.patterns import Outbox
from warren.sdk import App, Event, Router


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


# The transaction ends before the response is sent: scope="function".
Session = Annotated[AsyncSession, Depends(get_session, scope="function")]

billing = Router(prefix="billing.")


@billing.handle(OrderPlaced, queue="orders")
async def bill(order: OrderPlaced, session: Session) -> None:
    await session.execute(text("INSERT INTO invoices VALUES (:id)"), {"id": order.order_id})


# The service also starts while its broker is away.
messaging = App(start="background")
messaging.publishes(OrderPlaced)
messaging.include(outbox)
messaging.include(billing)


@asynccontextmanager
async def lifespan(web: FastAPI) -> AsyncGenerator[None, None]:
    await create_tables()
    async with messaging:
        yield
    await engine.dispose()


web = FastAPI(lifespan=lifespan)


@web.post("/orders/{order_id}", status_code=202)
async def place(order_id: int, session: Session) -> dict[str, int]:
    await session.execute(text("INSERT INTO orders VALUES (:id)"), {"id": order_id})
    await outbox.add(session, OrderPlaced(order_id=order_id))
    return {"order_id": order_id}


@web.get("/invoices")
async def invoices(session: Session) -> list[int]:
    return list((await session.execute(text("SELECT id FROM invoices ORDER BY id"))).scalars())


@web.get("/health")
async def health() -> dict[str, str]:
    return {"messaging": messaging.state.value}


async def create_tables() -> None:
    async with engine.begin() as connection:
        for table in ("orders", "invoices"):
            await connection.execute(text(f"CREATE TABLE IF NOT EXISTS {table} (id integer primary key)"))
