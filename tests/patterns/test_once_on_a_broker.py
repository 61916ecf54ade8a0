"""`Once` against the two unavoidable kinds of duplicates: a redelivery after a lost acknowledgement, and a republish
after a lost confirm."""

from __future__ import annotations

import asyncio
from decimal import Decimal

from tests.patterns.conftest import NewApp
from tests.support.polling import eventually
from tests.support.proxy import Proxy
from warren.patterns import Once, Store
from warren.sdk import Command, Request


async def test_a_redelivery_after_a_lost_acknowledgement_runs_nothing(
    amqp_url: str, store: Store, new_app: NewApp, name: str
) -> None:
    """The connection breaks before the acknowledgement: the redelivery to another process runs nothing."""

    class Charge(Command, queue=f"{name}.charges"):
        order_id: str

    once = Once(store)
    charged: list[str] = []
    async with Proxy(amqp_url) as proxy:
        app, successor = new_app(proxy.url), new_app()

        @successor.handle(Charge, once=once)
        @app.handle(Charge, once=once)
        async def charge(command: Charge) -> None:
            charged.append(command.order_id)
            proxy.to_server.hold()  # From here on nothing reaches the broker, also no acknowledgement.

        async with app:
            await app.publish(Charge(order_id="42"))
            await eventually(lambda: once.statistics.run == 1, "the handler has run and its result is kept")
            proxy.refuse()
            proxy.cut()
            proxy.to_server.release()
            async with successor:
                await eventually(lambda: once.statistics.duplicates >= 1, "the message is delivered again")
    assert charged == ["42"]


async def test_a_republish_after_a_lost_confirm_runs_nothing(
    amqp_url: str, store: Store, new_app: NewApp, name: str
) -> None:
    """The confirm is lost and the publisher sends the message again, with the same id: one effect."""

    class Charge(Command, queue=f"{name}.charges"):
        order_id: str

    once = Once(store)
    charged: list[str] = []
    consumer = new_app()

    @consumer.handle(Charge, once=once)
    async def charge(command: Charge) -> None:
        charged.append(command.order_id)

    async with consumer, Proxy(amqp_url) as proxy, new_app(proxy.url) as publisher:
        await publisher.publish(Charge(order_id="first"))
        proxy.to_client.hold()  # The broker's confirms do not come back.
        publishing = asyncio.ensure_future(publisher.publish(Charge(order_id="second"), timeout=120))
        await eventually(lambda: "second" in charged, "the broker has the message")
        proxy.cut()
        proxy.to_client.release()
        await publishing
        await eventually(lambda: once.statistics.duplicates >= 1, "the copy has arrived")
    assert charged == ["first", "second"]


async def test_repeated_calls_get_the_same_reply(store: Store, new_app: NewApp, name: str) -> None:
    class Price(Request[Decimal], queue=f"{name}.prices"):
        sku: str

    app = new_app()
    asked: list[str] = []

    @app.handle(Price, once=Once(store, key=lambda request: str(request.sku)))
    async def price(request: Price) -> Decimal:
        asked.append(request.sku)
        return Decimal("9.90")

    async with app:
        assert await app.call(Price(sku="x")) == Decimal("9.90")
        assert await app.call(Price(sku="x")) == Decimal("9.90")
    assert asked == ["x"]
