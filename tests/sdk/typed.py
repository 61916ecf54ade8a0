"""Types that a type checker must infer for the SDK; checked by `test_typing.py`, never executed."""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from asyncio import Future
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Annotated, assert_type

from pydantic import BaseModel

from warren.sdk import (
    Ack,
    App,
    Command,
    DeadLetter,
    Delivery,
    Depends,
    Event,
    Fault,
    FetchedMessage,
    GatherResult,
    Header,
    PublishReport,
    Queue,
    Request,
    Router,
    Scatter,
)


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


class Ledger:
    pass


async def open_ledger() -> AsyncIterator[Ledger]:
    yield Ledger()


def open_tenant(delivery: Delivery) -> str:
    return delivery.queue


@app.handle(OrderPlaced, queue="ledger")
async def write(
    order: OrderPlaced,
    ledger: Annotated[Ledger, Depends(open_ledger)],
    tenant: Annotated[str, Depends(open_tenant)],
    agent: Annotated[str, Header()] = "nobody",
) -> Ack | DeadLetter:
    assert_type(ledger, Ledger)
    assert_type(tenant, str)
    return Ack() if agent else DeadLetter("nobody")


@app.handle.batch(OrderPlaced, queue="rows", size=10)
async def store(orders: list[OrderPlaced]) -> None: ...


# Plain functions run in threads.


@app.handle(GetQuote)
def quote_in_thread(request: GetQuote) -> Quote:
    return Quote(cents=1)


@app.handle(FindQuote)
def find_in_thread(request: FindQuote, delivery: Delivery) -> Quote | OutOfStock:
    return OutOfStock()


@app.handle(OrderPlaced, queue="ledger")
def write_in_thread(order: OrderPlaced, ledger: Annotated[Ledger, Depends(open_ledger)]) -> Ack | None: ...


@app.handle.batch(OrderPlaced, queue="rows", size=10)
def store_in_thread(orders: list[OrderPlaced]) -> list[Exception | None]:
    return [None for _ in orders]


def use_plain_handlers(delivery: Delivery) -> None:
    assert_type(quote_in_thread(GetQuote(sku="x")), Quote)
    assert_type(find_in_thread(FindQuote(sku="x"), delivery), Quote | OutOfStock)
    assert_type(write_in_thread(OrderPlaced(order_id="1"), Ledger()), Ack | None)
    assert_type(store_in_thread([OrderPlaced(order_id="1")]), list[Exception | None])


async def use_handlers(delivery: Delivery) -> None:
    # A decorated function stays what it was.
    assert_type(await write(OrderPlaced(order_id="1"), Ledger(), "acme", agent="x"), Ack | DeadLetter)
    assert_type(await store([OrderPlaced(order_id="1")]), None)


async def use_publishing() -> None:
    assert_type(await app.publish(OrderPlaced(order_id="1")), None)
    assert_type(await app.submit(OrderPlaced(order_id="1")), Future[None])
    async for report in app.publish_batches([OrderPlaced(order_id="1")], count=10):
        assert_type(report, PublishReport)
    assert_type(await app.get("orders"), FetchedMessage | None)
    async with app.transaction() as transaction:
        assert_type(await transaction.publish(OrderPlaced(order_id="1")), None)
    assert_type(app.statistics().handled, int)


async def use_replies() -> None:
    assert_type(await app.call(FindQuote(sku="x")), Quote | OutOfStock)
    assert_type(await app.gather(AskPrice(sku="x")), GatherResult[Quote])
    assert_type((await app.gather(AskPrice(sku="x"), replies=3)).values, list[Quote])
    assert_type(await app.gather(GetQuote(sku="x"), exchange="all"), GatherResult[Quote])
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


@app.handle(GetQuote)  # type: ignore[arg-type]
def wrong_reply_in_thread(request: GetQuote) -> str:
    return "free"


@app.handle.batch(OrderPlaced, queue="rows")  # type: ignore[arg-type]
def wrong_batch_in_thread(orders: list[Charge]) -> None: ...


@app.handle.batch(OrderPlaced, queue="rows")  # type: ignore[arg-type]
def wrong_outcome_in_thread(orders: list[OrderPlaced]) -> int:
    return len(orders)


@app.handle(OrderPlaced, queue="billing")  # type: ignore[arg-type]
async def wrong_message(order: Charge) -> None: ...


@app.handle(FindQuote)  # type: ignore[arg-type]
async def wrong_member(request: FindQuote) -> Stock:
    return Stock(left=1)


@app.handle(AskPrice, queue="supplier.a")  # type: ignore[arg-type]
async def wrong_offer(request: AskPrice) -> OutOfStock:
    return OutOfStock()


@app.handle(OrderPlaced, queue="ledger")  # type: ignore[arg-type]
async def wrong_dependency(ledger: Annotated[Ledger, Depends(open_ledger)], order: OrderPlaced) -> None: ...


@app.handle.batch(OrderPlaced, queue="rows")  # type: ignore[arg-type]
async def wrong_batch(orders: list[Charge]) -> None: ...


async def wrong_use() -> None:
    await write(OrderPlaced(order_id="1"))  # type: ignore[call-arg]
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


router = Router(prefix="billing.")


@router.handle(GetQuote)
async def routed_quote(request: GetQuote) -> Quote:
    return Quote(cents=1)


@router.handle(OrderPlaced, queue="billing", concurrency=8)
async def routed_bill(order: OrderPlaced, delivery: Delivery) -> None: ...


@router.handle.batch(OrderPlaced, queue="rows")
async def routed_rows(orders: list[OrderPlaced]) -> None: ...


@router.handle(GetQuote)  # type: ignore[arg-type]
async def routed_nothing(request: GetQuote) -> str:
    return ""


@router.handle(Charge)  # type: ignore[arg-type]
async def routed_wrong(message: OrderPlaced) -> None: ...


router.include(Router())
app.include(router)
app.include("router")  # type: ignore[arg-type]
router.publishes(Charge)
