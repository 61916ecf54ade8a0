"""Test harness on the virtual clock: handlers, delays, deadlines and leases in one test-controlled time."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Annotated

import pytest

from warren.broker.model.virtual_clock import Unsettled
from warren.patterns import Delay, Once, SqliteStore
from warren.sdk import (
    Ack,
    App,
    Command,
    ConfigError,
    DeadLetter,
    Delivery,
    Depends,
    Event,
    Message,
    Queue,
    RemoteError,
    Request,
    RetryLater,
)
from warren.testing import Warren


class Placed(Event, exchange="orders", key="order.placed", audience=["billing", "stock"]):
    order_id: str


class Ship(Command, queue="shipping"):
    order_id: str


class GetPrice(Request[int], queue="prices"):
    sku: str


async def test_publish_returns_after_all_that_follows_is_done(warren: Warren) -> None:
    billing, stock = App(), App()

    @billing.handle(Placed, queue="billing")
    async def bill(order: Placed) -> None:
        await billing.publish(Ship(order_id=order.order_id))

    @stock.handle(Placed, queue="stock")
    async def reserve(order: Placed) -> None:
        await asyncio.sleep(0)

    @stock.handle(Ship)
    async def ship(order: Ship) -> None: ...

    async with warren.running(billing, stock):
        for number in range(20):
            await warren.publish(Placed(order_id=str(number)))
        assert warren.handled(Ship) == [Ship(order_id=str(number)) for number in range(20)]
        assert len(warren.handled(Placed)) == 40
        assert warren.dead_letters == []


async def test_delayed_messages_arrive_at_their_time(warren: Warren) -> None:
    app, delay, seen = App(), Delay(), list[tuple[str, datetime]]()
    app.include(delay)

    @app.handle(Ship)
    async def ship(order: Ship) -> None:
        seen.append((order.order_id, warren.now))

    async with warren.running(app):
        began = warren.now
        await delay.after(Ship(order_id="late"), timedelta(days=3))
        await delay.after(Ship(order_id="early"), timedelta(seconds=90))
        await warren.advance(seconds=89)
        assert not seen
        await warren.advance(days=4)
    assert [order for order, _ in seen] == ["early", "late"]
    assert [at - began for _, at in seen] == [timedelta(seconds=90), timedelta(days=3)]


async def test_a_handler_that_sleeps_on_the_apps_clock_waits_for_advance(warren: Warren) -> None:
    app = App()

    @app.handle(Ship, concurrency=1)
    async def ship(order: Ship) -> None:
        await app.clock.sleep(3600)

    async with warren.running(app):
        await warren.publish(Ship(order_id="1"))
        await warren.publish(Ship(order_id="2"))
        await warren.advance(minutes=90)
        assert [order.order_id for order in warren.handled(Ship)] == ["1"]
        await warren.advance(minutes=30)
        assert [order.order_id for order in warren.handled(Ship)] == ["1", "2"]


async def test_a_call_advances_the_time_that_its_handler_sleeps(warren: Warren) -> None:
    app, failures = App(), [ConnectionError("first"), ConnectionError("second")]

    @app.handle(GetPrice)
    async def price(request: GetPrice) -> int:
        if failures:
            raise failures.pop()
        return len(request.sku)

    async with warren.running(app):
        began = warren.now
        assert await warren.call(GetPrice(sku="lamp")) == 4
        assert warren.now > began
        assert warren.handled(GetPrice) == [GetPrice(sku="lamp")]


async def test_a_handler_that_calls_one_that_sleeps_does_not_hold_up_the_time(warren: Warren) -> None:
    app = App()

    @app.handle(Ship)
    async def ship(order: Ship) -> None:
        await app.call(GetPrice(sku=order.order_id))

    @app.handle(GetPrice)
    async def price(request: GetPrice) -> int:
        await app.clock.sleep(60)
        return 1

    async with warren.running(app):
        await warren.publish(Ship(order_id="1"))
        assert not warren.handled(Ship)
        await warren.advance(minutes=1)
        assert warren.handled(Ship) == [Ship(order_id="1")]


async def test_an_error_that_is_a_reply_is_an_error_of_the_call(warren: Warren) -> None:
    app = App()

    @app.handle(GetPrice)
    async def price(request: GetPrice) -> int:
        raise RemoteError("unknown_sku", request.sku)

    async with warren.running(app):
        with pytest.raises(RemoteError, match="desk"):
            await warren.call(GetPrice(sku="desk"))
        assert not warren.handled(GetPrice)


async def test_dead_letters_of_the_broker_are_collected_too(warren: Warren) -> None:
    class Quote(Command, queue=Queue("quotes", message_ttl=timedelta(minutes=5))):
        sku: str

    app = App()

    @app.handle(Ship)
    async def ship(order: Ship) -> None:
        raise LookupError(order.order_id)

    async with warren.running(app):
        await warren.publish(Quote(sku="lamp"))
        await warren.publish(Ship(order_id="1"))
        await warren.advance(minutes=6)
        failed, expired = warren.dead_letters
    assert (failed.queue, failed.reason, failed.error) == ("shipping", "failed", "LookupError: 1")
    assert (expired.queue, expired.reason, expired.read(Quote)) == ("quotes", "expired", Quote(sku="lamp"))


async def test_leases_and_stored_results_use_the_tests_clock(warren: Warren, tmp_path: object) -> None:
    app, store = App(), SqliteStore(f"{tmp_path}/claims.sqlite")

    @app.handle(Ship, once=Once(store, key=lambda order: str(order.order_id), keep=timedelta(hours=1)))
    async def ship(order: Ship) -> None:
        await app.clock.sleep(300)

    async with warren.running(app):
        for _ in range(2):
            await warren.publish(Ship(order_id="1"))
        await warren.advance(minutes=50)
        assert len(warren.handled(Ship)) == 1
        await warren.advance(minutes=30)
        await warren.publish(Ship(order_id="1"))
        await warren.advance(minutes=6)
        assert len(warren.handled(Ship)) == 2


async def test_messages_with_other_outcomes_are_not_listed_as_handled(warren: Warren) -> None:
    app = App()

    @app.handle(Ship)
    async def ship(order: Ship, delivery: Delivery) -> Ack | DeadLetter | RetryLater | None:
        match order.order_id:
            case "dead":
                return DeadLetter("nobody's")
            case "later" if delivery.attempt == 1:
                return RetryLater("1h")
            case "done":
                return Ack()
        return None

    async with warren.running(app):
        for order_id in ("dead", "later", "done", "fine"):
            await warren.publish(Ship(order_id=order_id))
        assert [order.order_id for order in warren.handled(Ship)] == ["done", "fine"]
        assert [dead.reason for dead in warren.dead_letters] == ["rejected"]
        await warren.advance(minutes=59)
        assert len(warren.handled(Ship)) == 2
        await warren.advance(minutes=1)
        assert [order.order_id for order in warren.handled(Ship)] == ["done", "fine", "later"]


async def test_a_batch_is_handled_when_it_is_full_or_its_time_is_over(warren: Warren) -> None:
    app, sizes = App(), list[int]()

    @app.handle.batch(Ship, size=3, within="10s")
    async def ship(orders: list[Ship]) -> None:
        sizes.append(len(orders))

    async with warren.running(app):
        for number in range(4):
            await warren.publish(Ship(order_id=str(number)))
        assert sizes == [3]
        assert len(warren.handled(Ship)) == 3
        await warren.advance(seconds=10)
    assert sizes == [3, 1]
    assert len(warren.handled(Ship)) == 4


async def test_a_dependency_can_be_overridden(warren: Warren) -> None:
    app, sent = App(), list[str]()

    async def mailer() -> str:
        raise AssertionError("this is a test")

    @app.handle(Ship)
    async def ship(order: Ship, mail: Annotated[str, Depends(mailer)]) -> None:
        sent.append(mail)

    async with warren.running(app):
        with app.override(mailer, lambda: "a fake"):
            await warren.publish(Ship(order_id="1"))
    assert sent == ["a fake"]


async def test_published_messages_are_listed_by_class(warren: Warren) -> None:
    app = App()

    @app.handle(Placed, queue="billing")
    async def bill(order: Placed) -> None:
        await app.publish(Ship(order_id=order.order_id))
        report = await app.publish_many([Ship(order_id="a"), Ship(order_id="b")])
        assert report.confirmed == 2

    async with warren.running(app):
        await warren.publish(Placed(order_id="1"))
        assert [order.order_id for order in warren.published(Ship)] == ["1", "a", "b"]
        assert warren.published(Placed) == []
        assert len(warren.published(Message)) == 3


async def test_messagepack_messages_are_decoded(warren: Warren) -> None:
    class Packed(Command, queue="packed", content_type="application/msgpack"):
        number: int

    app = App()

    @app.handle(Packed)
    async def unpack(message: Packed) -> None:
        if message.number < 3:
            await app.publish(Packed(number=message.number + 1))
        else:
            raise DeadLetter("enough")

    async with warren.running(app):
        await warren.publish(Packed(number=1))
        assert warren.published(Packed) == [Packed(number=2), Packed(number=3)]
        [dead] = warren.dead_letters
        assert dead.read(Packed) == Packed(number=3)


async def test_a_handler_that_waits_for_something_outside_is_named(warren: Warren) -> None:
    app, begun, outside = App(), asyncio.Event(), asyncio.Event()

    @app.handle(Ship)
    async def ship(order: Ship) -> None:
        begun.set()
        await outside.wait()

    async with warren.running(app):
        publishing = asyncio.create_task(app.publish(Ship(order_id="1")))
        await begun.wait()
        await publishing
        # From here on there is nothing else to wait for, however long the machine stands still.
        warren.patience = 0.2
        with pytest.raises(Unsettled, match="a handler of queue shipping"):
            await warren.settle()
        outside.set()
        warren.patience = 60.0
        await warren.settle()
        assert warren.handled(Ship) == [Ship(order_id="1")]


async def test_an_app_is_restored_and_can_be_tested_again(warren: Warren) -> None:
    app = App("amqp://elsewhere:5672/")
    time = app.clock.now()

    @app.handle(Ship)
    async def ship(order: Ship) -> None: ...

    for _ in range(2):
        async with warren.running(app):
            assert app.url == warren.url
            await warren.advance(days=1)
            await warren.publish(Ship(order_id="1"))
            assert warren.handled(Ship) == [Ship(order_id="1")]
        assert app.url == "amqp://elsewhere:5672/"
        assert app.clock.now() - time < 3600


async def test_wrong_use_raises(warren: Warren) -> None:
    app = App()
    with pytest.raises(RuntimeError, match=r"warren\.running"):
        await warren.publish(Ship(order_id="1"))
    async with warren.running(app):
        with pytest.raises(RuntimeError, match="first, second"):
            async with warren.running(App()):
                raise AssertionError
    async with App() as running:
        with pytest.raises(ConfigError, match="override it for a test"):
            async with warren.running(running):
                raise AssertionError
