"""What a type checker must see in the SDK; checked by `test_typing.py`, never run."""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from datetime import timedelta
from typing import assert_type

from pydantic import BaseModel

from warren.sdk import App, Command, Delivery, Event, Fault, Gathered, PublishReport, Queue, Request, Scatter


class Quote(BaseModel):
    cents: int


class GetQuote(Request[Quote], queue="quotes"):
    sku: str


class GetNames(Request[list[str]], queue="names"):
    pass


class OutOfStock(BaseModel):
    pass


class FindQuote(Request[Quote | OutOfStock], queue="quotes.found"):
    sku: str


class Stock(BaseModel):
    left: int


class SoldOut(Fault[Stock], code="sold_out"):
    pass


class Closed(Fault[None], code="closed"):
    pass


class AskPrice(Scatter[Quote], exchange="prices", key="ask", audience=["supplier.a"], faults=[SoldOut]):
    sku: str


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


@app.handle(FindQuote)
async def find(request: FindQuote) -> Quote | OutOfStock:
    if not request.sku:
        raise Closed("closed")
    return OutOfStock()


@app.handle(AskPrice, queue="supplier.a", keys=["ask"])
async def offer(request: AskPrice) -> Quote:
    raise SoldOut("none left", Stock(left=0))


async def use_replies() -> None:
    assert_type(await app.call(FindQuote(sku="x")), Quote | OutOfStock)
    assert_type(await app.gather(AskPrice(sku="x")), Gathered[Quote])
    assert_type((await app.gather(AskPrice(sku="x"), replies=3)).values, list[Quote])
    assert_type(await app.gather(GetQuote(sku="x"), exchange="all"), Gathered[Quote])
    async for reply in app.gather(AskPrice(sku="x")):
        assert_type(reply.value, Quote)
    try:
        await app.call(GetQuote(sku="x"))
    except SoldOut as error:
        assert_type(error.details, Stock)


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


@app.handle(FindQuote)  # type: ignore[arg-type]
async def wrong_member(request: FindQuote) -> Stock:
    return Stock(left=1)


@app.handle(AskPrice, queue="supplier.a")  # type: ignore[arg-type]
async def wrong_offer(request: AskPrice) -> OutOfStock:
    return OutOfStock()


async def wrong_use() -> None:
    SoldOut("none left", "lamp")  # type: ignore[call-overload]
    await app.call(AskPrice(sku="x"))  # type: ignore[arg-type]
    await app.call(OrderPlaced(order_id="1"))  # type: ignore[arg-type]
    await bill(OrderPlaced(order_id="1"))  # type: ignore[call-arg]
    cents: str = (await app.call(GetQuote(sku="x"))).cents  # type: ignore[assignment]
    print(cents)


# Each type of queue takes its own arguments.
DAY = timedelta(days=1)
assert_type(Queue("q", delivery_limit=5, message_ttl=DAY), Queue)
assert_type(Queue("q", type="classic", max_priority=5, exclusive=True), Queue)
assert_type(Queue("q", max_priority=5), Queue)
assert_type(Queue("q", type="stream", max_age=DAY), Queue)
Queue("q", type="stream", message_ttl=DAY)  # type: ignore[call-overload]
Queue("q", type="classic", delivery_limit=5)  # type: ignore[call-overload]
Queue("q", type="quorum", max_priority=5)  # type: ignore[call-overload]
Queue("q", type="quorum", exclusive=True)  # type: ignore[call-overload]
Queue("q", max_age=DAY, message_ttl=DAY)  # type: ignore[call-overload]
Queue("q", overflow="drop-tail")  # type: ignore[call-overload]
