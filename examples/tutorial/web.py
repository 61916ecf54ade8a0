"""The web shop: an order and its event are one database transaction."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from pydantic import BaseModel
from sqlalchemy import String
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from orders import OrderPlaced
from warren.patterns import Outbox
from warren.sdk import App


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    order_id: Mapped[str] = mapped_column(String, primary_key=True)
    email: Mapped[str]


class NewOrder(BaseModel):
    order_id: str
    email: str


engine = create_async_engine("sqlite+aiosqlite:///shop.sqlite")
sessions = async_sessionmaker(engine)
outbox = Outbox(sessions)
app = App()
app.publishes(OrderPlaced)
app.include(outbox)


@asynccontextmanager
async def lifespan(api: FastAPI) -> AsyncGenerator[None, None]:
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    async with app:
        yield
    await engine.dispose()


api = FastAPI(lifespan=lifespan)


@api.post("/orders", status_code=201)
async def place(order: NewOrder) -> NewOrder:
    async with sessions.begin() as session:
        session.add(Order(order_id=order.order_id, email=order.email))
        await outbox.add(session, OrderPlaced(order_id=order.order_id, email=order.email))
    return order
