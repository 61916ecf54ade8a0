"""What a type checker must see in the SDK; checked by `test_typing.py`, never run."""

from __future__ import annotations

from typing import assert_type

from pydantic import BaseModel

from warren.sdk import App, Command, Delivery, Event, PublishReport, Request


class Quote(BaseModel):
    cents: int


class GetQuote(Request[Quote], queue="quotes"):
    sku: str


class GetNames(Request[list[str]], queue="names"):
    pass


class OrderPlaced(Event, exchange="orders", key="order.placed"):
    order_id: str


class Charge(Command, queue="charges"):
    order_id: str


app = App()


@app.handle(GetQuote)
async def quote(request: GetQuote) -> Quote:
    return Quote(cents=1)


@app.handle(OrderPlaced, queue="billing", concurrency=8)
async def bill(order: OrderPlaced, delivery: Delivery) -> None: ...


@app.handle(Charge)
async def charge(command: Charge) -> str:
    return "receipt"


async def use(delivery: Delivery) -> None:
    assert_type(await app.call(GetQuote(sku="x"), timeout=2), Quote)
    assert_type(await app.call(GetNames()), list[str])
    assert_type(await quote(GetQuote(sku="x")), Quote)
    assert_type(await quote(request=GetQuote(sku="x")), Quote)
    assert_type(await charge(Charge(order_id="1")), str)
    assert_type(await app.publish_many([OrderPlaced(order_id="1")]), PublishReport)
    await bill(OrderPlaced(order_id="1"), delivery)


@app.handle(GetQuote)  # type: ignore[arg-type]
async def wrong_reply(request: GetQuote) -> str:
    return "free"


@app.handle(OrderPlaced, queue="billing")  # type: ignore[arg-type]
async def wrong_message(order: Charge) -> None: ...


async def wrong_use() -> None:
    await app.call(OrderPlaced(order_id="1"))  # type: ignore[arg-type]
    await bill(OrderPlaced(order_id="1"))  # type: ignore[call-arg]
    cents: str = (await app.call(GetQuote(sku="x"))).cents  # type: ignore[assignment]
    print(cents)
