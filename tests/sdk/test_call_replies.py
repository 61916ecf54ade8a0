"""Reply types: plain types, unions, and faults."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from decimal import Decimal
from traceback import format_exception
from typing import Any

import pytest
from pydantic import BaseModel

from tests.sdk.conftest import MakeApp
from tests.support.async_client import AsyncClient
from warren.sdk import ConfigError, Fault, Outgoing, Queue, RemoteError, Request
from warren.sdk.rpc.reply_types import reply_codec


class Quote(BaseModel):
    cents: int


class Estimate(BaseModel):
    """A reply with the fields of a Quote, distinguishable by its name only."""

    cents: int


class Stock(BaseModel):
    left: int
    price: Decimal


class SoldOut(Fault[Stock], code="sold_out", retryable=True):
    pass


class Closed(Fault[None], code="closed"):
    pass


async def test_a_reply_is_the_member_of_the_union_that_the_server_returned(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    class GetPrice(Request[Quote | Estimate | None], queue=name):
        sku: str

    app = make_app()

    @app.handle(GetPrice)
    async def price(request: GetPrice) -> Quote | Estimate | None:
        known: dict[str, Quote | Estimate] = {"quote": Quote(cents=1), "estimate": Estimate(cents=1)}
        return known.get(request.sku)

    async with app:
        assert await app.call(GetPrice(sku="quote")) == Quote(cents=1)
        assert await app.call(GetPrice(sku="estimate")) == Estimate(cents=1)
        assert await app.call(GetPrice(sku="neither")) is None
        replies = await amqp_client.channel.declare_queue(exclusive=True)
        await amqp_client.put(name, b'{"sku":"estimate"}', reply_to=replies.name, correlation_id="c1")
        seen = await amqp_client.take(replies.name)
    assert (seen.type, seen.body) == ("estimate", b'{"cents":1}')


async def test_a_union_of_replies_from_a_server_that_names_no_type(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    class GetStock(Request[Quote | Stock], queue=name):
        pass

    app = make_app()
    app.declare(*GetStock.required_topology())
    async with app:
        call = asyncio.create_task(app.call(GetStock()))
        request = await amqp_client.take(name)
        assert request.reply_to is not None
        await amqp_client.put(
            request.reply_to, b'{"left":1,"price":"2.5"}', correlation_id=request.correlation_id
        )
        assert await call == Stock(left=1, price=Decimal("2.5"))


async def test_a_fault_arrives_as_the_class_that_was_raised(make_app: MakeApp, name: str) -> None:
    class Buy(Request[int], queue=name, faults=[SoldOut, Closed]):
        sku: str

    app = make_app()

    @app.handle(Buy)
    async def buy(request: Buy) -> int:
        if request.sku == "lamp":
            raise SoldOut("none left", Stock(left=0, price=Decimal("9.90")))
        raise Closed("come again tomorrow")

    async with app:
        with pytest.raises(SoldOut, match="sold_out: none left") as sold_out:
            await app.call(Buy(sku="lamp"))
        with pytest.raises(Closed) as closed:
            await app.call(Buy(sku="desk"))
        assert app.statistics().calls.remote_errors == 2
        assert app.statistics().handlers[name].failed_attempts == 0
    assert sold_out.value.details == Stock(left=0, price=Decimal("9.90"))
    assert (sold_out.value.code, sold_out.value.retryable) == ("sold_out", True)
    assert (closed.value.details, closed.value.message, closed.value.retryable) == (
        None, "come again tomorrow", False,
    )  # fmt: skip


async def test_a_reply_that_would_not_read_back_is_an_error(make_app: MakeApp, name: str) -> None:
    class Odds(BaseModel):
        odds: float

    class Unknown(Fault[Odds], code="unknown"):
        pass

    class GetOdds(Request[Odds], queue=name, faults=[Unknown]):
        fails: bool

    app = make_app()

    @app.handle(GetOdds)
    async def get_odds(request: GetOdds) -> Odds:
        found = Odds(odds=float("inf"))
        if request.fails:
            raise Unknown("no bets yet", found)
        return found

    async with app:
        with pytest.raises(RemoteError, match="a Odds cannot be written: odds is infinite or not a number"):
            await app.call(GetOdds(fails=False))
        with pytest.raises(
            RemoteError, match=r"unknown: no bets yet \(without its details: a Odds cannot be"
        ):
            await app.call(GetOdds(fails=True))


async def test_an_unknown_fault_is_a_remote_error_with_its_code(make_app: MakeApp, name: str) -> None:
    class Buy(Request[int], queue=name):
        pass

    class BuyOfOld(Request[int], queue=name, type="buy", faults=[Closed]):
        pass

    class ClosedNow(Fault[Stock], code="closed"):
        pass

    server, client = make_app(), make_app()

    @server.handle(Buy)
    async def buy(request: Buy) -> int:
        raise ClosedNow("stocktaking", Stock(left=1, price=Decimal(1)), retryable=True)

    async with server, client:
        with pytest.raises(RemoteError) as unknown:
            await client.call(Buy())
        with pytest.raises(RemoteError) as other:
            await client.call(BuyOfOld())
    for caught in (unknown, other):
        assert type(caught.value) is RemoteError
        assert (caught.value.code, caught.value.message, caught.value.retryable) == (
            "closed",
            "stocktaking",
            True,
        )
        assert caught.value.details == {"left": 1, "price": "1"}


def test_invalid_reply_types_are_refused_at_once() -> None:
    class Inner(BaseModel):
        class Quote(BaseModel):
            pass

    class Twice(Request[Quote | Inner.Quote], queue="x"):
        pass

    class Nothing(Request, queue="x"):  # type: ignore[type-arg]
        pass

    class Nameless(Fault[None]):
        pass

    with pytest.raises(ConfigError, match="two replies are called 'quote' on the wire"):
        reply_codec(Twice)
    with pytest.raises(ConfigError, match="does not say what it is answered with"):
        reply_codec(Nothing)
    with pytest.raises(ConfigError, match="Nameless has no code"):
        Nameless("oh")


@pytest.mark.parametrize("small", [True, False])
async def test_a_reply_that_can_never_be_published_is_not_retried_for_ever(
    make_app: MakeApp, amqp_client: AsyncClient, name: str, small: bool
) -> None:
    class Fetch(Request[str], queue=name):
        pass

    app = make_app()
    handled: list[Fetch] = []

    async def refuse(outgoing: Outgoing, call_next: Callable[[Outgoing], Awaitable[None]]) -> None:
        is_reply = outgoing.properties.get("correlation_id") and outgoing.routing_key != name
        if is_reply and (len(outgoing.body) > 1000 or not small):
            raise ConfigError("the message is too large")
        await call_next(outgoing)

    app.middleware(publish=refuse)

    @app.handle(Fetch)
    async def fetch(request: Fetch) -> str:
        handled.append(request)
        return "x" * 2000

    async with app:
        if small:
            with pytest.raises(RemoteError, match="reply_refused: the message is too large"):
                await app.call(Fetch(), timeout=60)
        else:
            replies = await amqp_client.channel.declare_queue(exclusive=True)
            await amqp_client.put(name, b"{}", reply_to=replies.name, correlation_id="c1")
            dead = await amqp_client.take(f"{name}.dead")
            assert dead.headers["warren-dead-reason"] == "reply_refused"
        assert len(handled) == 1


async def test_the_error_of_an_undecodable_reply_does_not_show_its_content(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    class Fetch(Request[int], queue=name):
        pass

    app = make_app()
    app.declare(Queue(name, type="classic"))

    async with app:
        calling = asyncio.create_task(app.call(Fetch(), timeout=60))
        request = await amqp_client.take(name)
        assert request.reply_to is not None
        await amqp_client.put(request.reply_to, b'"secret"', correlation_id=request.correlation_id)
        with pytest.raises(RemoteError, match="Input should be a valid integer") as caught:
            await calling
    assert caught.value.code == "undecodable_reply"
    assert "secret" not in "".join(format_exception(caught.value))


async def test_the_error_of_a_wrong_result_does_not_show_its_content(
    make_app: MakeApp, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Fetch(Request[dict[str, int]], queue=name):
        pass

    app = make_app()

    @app.handle(Fetch)
    async def fetch(request: Fetch) -> Any:
        return {"pin": "secret"}

    async with app:
        with pytest.raises(RemoteError, match="pin: Input should be a valid integer") as caught:
            await app.call(Fetch(), timeout=60)
    assert "event=handler.failed" in caplog.text
    assert "secret" not in caplog.text + "".join(format_exception(caught.value))
