"""Aliases: a renamed message class reads messages that carry a former name as their type."""

from __future__ import annotations

from typing import Any

import pytest

from tests.sdk.conftest import MakeApp
from tests.support.async_client import AsyncClient
from tests.support.polling import eventually
from warren.sdk import App, Command, ConfigError, Delivery, Event, Queue, Request
from warren.sdk.extend import by_wire_name, wire_names
from warren.sdk.messages.types import Message


class Quote(Message, aliases=["PriceQuote"]):
    price: int


class SoldOut(Message):
    sku: str


async def test_a_queue_with_several_handlers_passes_an_alias_to_the_renamed_class(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    class Placed(Event, exchange=f"{name}.x", key="placed", aliases=("order.placed.v1", "OldPlaced")):
        order_id: str

    class Cancelled(Event, exchange=f"{name}.x", key="cancelled"):
        order_id: str

    app = make_app()
    seen: list[tuple[str, str, str | None]] = []

    @app.handle(Placed, queue=Queue(name, dead_letter_exchange=None))
    async def placed(event: Placed, delivery: Delivery) -> None:
        seen.append(("placed", event.order_id, delivery.type))

    @app.handle(Cancelled, queue=Queue(name, dead_letter_exchange=None))
    async def cancelled(event: Cancelled) -> None:
        seen.append(("cancelled", event.order_id, None))

    async with app:
        for number, kind in enumerate(["placed", "order.placed.v1", "OldPlaced", "old_placed"]):
            await amqp_client.put(name, b'{"order_id": "%d"}' % number, type=kind)
        await app.publish(Cancelled(order_id="9"))
        await eventually(lambda: len(seen) == 5, "five messages are handled")
    assert sorted(seen, key=str) == [
        ("cancelled", "9", None),
        ("placed", "0", "placed"),
        ("placed", "1", "order.placed.v1"),
        ("placed", "2", "OldPlaced"),
        ("placed", "3", "old_placed"),
    ]


async def test_a_request_and_a_member_of_a_union_of_replies_may_have_former_names(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    class GetQuote(Request[Quote | SoldOut], queue=name, aliases=["GetPrice"]):
        sku: str

    class Other(Command, queue=name):
        pass

    app = make_app()

    async def name_the_reply_as_before(outgoing: Any, call_next: Any) -> None:
        if outgoing.properties.get("type") == "quote":
            outgoing.set("type", "price_quote")
        elif outgoing.properties.get("type") == "get_quote":
            outgoing.set("type", "get_price")
        await call_next(outgoing)

    app.middleware(publish=name_the_reply_as_before)

    @app.handle(GetQuote)
    async def quote(request: GetQuote) -> Quote | SoldOut:
        return Quote(price=5)

    @app.handle(Other)
    async def other(message: Other) -> None: ...

    async with app:
        assert await app.call(GetQuote(sku="lamp")) == Quote(price=5)


def test_two_classes_of_one_queue_may_not_have_the_same_name() -> None:
    class Placed(Event, exchange="x", key="placed", aliases=["ordered"]):
        pass

    class Ordered(Event, exchange="x", key="ordered"):
        pass

    app = App("memory://")

    @app.handle(Placed, queue="q")
    async def placed(event: Placed) -> None: ...

    with pytest.raises(ConfigError) as refused:

        @app.handle(Ordered, queue="q")
        async def ordered(event: Ordered) -> None: ...

    assert str(refused.value) == (
        "queue 'q' has handlers of Placed and Ordered, which both have the type or alias 'ordered': a message of this"
        " type has one reader"
    )
    with pytest.raises(ConfigError, match="Placed and Ordered both have the type or alias 'ordered'"):
        by_wire_name("saga s", [Placed, Ordered])

    @app.handle(Ordered, queue="another")
    async def elsewhere(event: Ordered) -> None: ...


@pytest.mark.parametrize("aliases", ["OldName", [""], [7], ["x" * 256]])
def test_a_bad_alias_is_refused(aliases: Any) -> None:
    with pytest.raises(ConfigError, match="alias"):

        class Placed(Event, exchange="x", key="placed", aliases=aliases):
            pass


def test_a_subclass_has_no_aliases_of_its_base() -> None:
    class Placed(Event, exchange="x", key="placed", aliases=["OldPlaced", "placed"]):
        pass

    class Special(Placed):
        pass

    assert wire_names(Placed) == ("placed", "OldPlaced", "old_placed")
    assert wire_names(Special) == ("special",)
