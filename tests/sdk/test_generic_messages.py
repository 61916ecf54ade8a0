"""Generic message classes: types, aliases and replies of a class with its parameters."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import pytest
from pydantic import BaseModel, create_model

from tests.sdk.conftest import MakeApp
from tests.support.async_client import AsyncClient
from tests.support.polling import eventually
from warren.sdk import Command, ConfigError, Delivery, Event, Queue, Request
from warren.sdk.messages.types import Message, wire_names

Item = TypeVar("Item")
Other = TypeVar("Other")


class Page(BaseModel, Generic[Item]):
    items: list[Item]


class Order(BaseModel):
    number: int


class Envelope(
    Event, Generic[Item], exchange="e", key="k", type="billing.envelope", aliases=["old.envelope"]
):
    body: Item


class Parcel(Event, Generic[Item], exchange="e", key="k", aliases=["OldBox"]):
    body: Item


class Pair(Command, Generic[Item, Other], queue="pairs", type="pair"):
    one: Item
    other: Other


class Named(Event, Generic[Item], exchange="e", key="k", type="t.named", aliases=["former"]):
    body: Item

    @classmethod
    def model_parametrized_name(cls, params: tuple[Any, ...]) -> str:
        return f"{params[0].__name__.title()}Named"


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (Envelope, ("billing.envelope", "old.envelope")),
        (Envelope[int], ("billing.envelope[int]", "old.envelope[int]")),
        (Envelope[Order], ("billing.envelope[order]", "old.envelope[order]")),
        (Envelope[list[Order]], ("billing.envelope[list[order]]", "old.envelope[list[order]]")),
        (Parcel[int], ("parcel[int]", "OldBox[int]", "old_box[int]")),
        (Pair[int, str], ("pair[int, str]",)),
        (Named[int], ("t.named[int_named]", "former[int_named]")),
    ],
)
def test_parameters_are_part_of_the_type_and_of_the_aliases(
    kind: type[Message], names: tuple[str, ...]
) -> None:
    assert wire_names(kind) == names


def test_parameters_may_be_given_one_after_the_other() -> None:
    generic: Any = Pair
    step = generic[int, Other]
    assert wire_names(step[str]) == ("pair[int, str]",)


def test_a_class_that_derives_from_one_with_parameters_has_its_own_type() -> None:
    class OrderEnvelope(Envelope[Order]):
        """Has no class keywords."""

    class Sealed(Envelope[Order], type="sealed"):
        """Has a type of its own."""

    assert wire_names(OrderEnvelope) == ("order_envelope",)
    assert wire_names(Sealed) == ("sealed",)
    assert (Sealed.wire_exchange, Sealed.wire_key) == ("e", "k")


def test_two_parameters_of_one_name_do_not_share_a_type() -> None:
    foreign: Any = create_model("Order", __module__="billing", number=(str, ...))

    class Local(Event, Generic[Item], exchange="e", key="k"):
        body: Item

    kinds: list[Any] = [Local[Order], Local[foreign]]
    kinds[0].required_topology()
    kinds[0].required_topology()
    with pytest.raises(
        ConfigError, match=r"^Local\[Order\] of billing.Order and of .*test_generic_messages.Order both"
    ):
        kinds[1].required_topology()

    own: type[Event] = create_model("Own", __base__=kinds[1])
    assert own.required_topology()


def test_the_reply_type_has_the_parameters_of_the_request() -> None:
    class Ask(Request[Page[Item]], Generic[Item], queue="q"):
        text: str

    class AskLists(Ask[list[Item]], Generic[Item], queue="q"):
        """Has a type variable of its own."""

    class AskOptional(Request[Item | None], Generic[Item], queue="q"):
        """Has a union as its reply."""

    class AskOrders(Ask[Order], queue="q"):
        """Has no parameters."""

    assert Ask[int].reply_type() == Page[int]
    assert AskLists[int].reply_type() == Page[list[int]]
    assert AskOptional[int].reply_type() == int | None
    assert AskOrders.reply_type() == Page[Order]


async def test_messages_with_parameters_are_published_and_handled(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    class Box(Event, Generic[Item], exchange=f"{name}.x", key="box", type="shop.box", aliases=["box"]):
        body: Item

    class GetPage(Request[Page[Item]], Generic[Item], queue=f"{name}.pages", type="page"):
        text: Item

    app = make_app()
    seen: list[tuple[object, str | None]] = []

    @app.handle(Box[int], queue=Queue(name, dead_letter_exchange=None))
    async def numbers(box: Box[int], delivery: Delivery) -> None:
        seen.append((box.body, delivery.type))

    @app.handle(Box[Order], queue=Queue(name, dead_letter_exchange=None))
    async def orders(box: Box[Order], delivery: Delivery) -> None:
        seen.append((box.body, delivery.type))

    @app.handle(GetPage[int])
    async def page(request: GetPage[int]) -> Page[int]:
        return Page[int](items=[request.text])

    async with app:
        await app.publish(Box[int](body=1))
        await app.publish(Box[Order](body=Order(number=2)))
        await amqp_client.put(name, b'{"body": 3}', type="box[int]")
        await eventually(lambda: len(seen) == 3, "three messages are handled")
        assert await app.call(GetPage[int](text=4)) == Page[int](items=[4])
    assert sorted(seen, key=str) == [
        (1, "shop.box[int]"),
        (3, "box[int]"),
        (Order(number=2), "shop.box[order]"),
    ]
