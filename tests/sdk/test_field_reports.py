"""Problems that users of other clients report (tests/sdk/pains.toml lists all), as far as no other module tests them."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from tests.sdk.conftest import MakeApp
from tests.support.async_client import AsyncClient
from tests.support.polling import eventually
from tests.support.proxy import Proxy
from warren.broker import Broker, BrokerConfig, VirtualClock
from warren.patterns import Delay
from warren.sdk import (
    App,
    Command,
    Delivery,
    Event,
    FetchedMessage,
    Queue,
    Request,
    Requeue,
    Retry,
    TransportUnavailable,
)
from warren.testing import Warren


async def test_a_handler_beyond_the_delivery_acknowledgement_timeout_loses_only_its_channel() -> None:
    """RabbitMQ closes a channel with a delivery unacknowledged for 30 minutes; the consumer must recover by itself."""

    class Ship(Command, queue="shipping"):
        order_id: str

    clock, began, go_on = VirtualClock(patience=60), list[str](), asyncio.Event()
    async with Broker(BrokerConfig(consumer_timeout=1_800_000), clock=clock) as broker:
        app = App(broker.url)

        @app.handle(Ship, concurrency=2)
        async def ship(order: Ship) -> None:
            began.append(order.order_id)
            if len(began) == 1:
                await go_on.wait()

        async with app:
            await app.publish(Ship(order_id="1"))
            await eventually(lambda: len(began) == 1, "it is being handled")
            await clock.advance(1860)
            shown = app.statistics
            await eventually(lambda: shown().subscriptions["shipping"].redelivered == 1, "it comes again")
            go_on.set()
            await app.publish(Ship(order_id="2"))
            await eventually(lambda: began == ["1", "2"], "the next one is handled, the first not again")
            await eventually(
                lambda: shown().subscriptions["shipping"].acknowledged == 2, "both are acknowledged"
            )
            subscription = shown().subscriptions["shipping"]
            assert subscription.rejected == subscription.requeued == subscription.stale == 0


async def test_a_broker_that_refuses_what_rabbitmq_4_3_refuses_takes_all_that_an_app_declares() -> None:
    class Placed(Event, exchange="orders", key="order.placed"):
        order_id: str

    class GetPrice(Request[int], queue="prices"):
        sku: str

    async with Broker(BrokerConfig(strict=True)) as broker:
        app, delay, seen = App(broker.url), Delay(), asyncio.Event()
        app.include(delay)

        @app.handle(Placed, queue="billing", retry=Retry(1).then("1s", "1m"))
        async def bill(order: Placed) -> None:
            seen.set()

        @app.handle(GetPrice)
        async def price(request: GetPrice) -> int:
            return len(request.sku)

        async with app:
            await app.publish(Placed(order_id="1"))
            assert await app.call(GetPrice(sku="lamp")) == 4
            await delay.after(Placed(order_id="2"), timedelta(hours=1))
            await asyncio.wait_for(seen.wait(), 60)
            assert app.statistics().reconnects == 0


async def test_a_message_that_costs_every_consumer_its_connection_ends_as_a_dead_letter(
    make_app: MakeApp, proxy: Proxy, amqp_client: AsyncClient, name: str
) -> None:
    class Poison(Command, queue=Queue(name, delivery_limit=2)):
        number: int

    app, runs = make_app(proxy.url, first_retry=0.01), list[int]()

    @app.handle(Poison)
    async def crash(message: Poison, delivery: Delivery) -> None:
        """Cut the connection and do not succeed, as the death of the process does."""
        runs.append(message.number)
        proxy.cut()
        await eventually(lambda: delivery.lost, "the consumer's connection is lost")
        raise MemoryError

    async with app:
        await amqp_client.put(name, b'{"number": 1}')
        dead = await amqp_client.take(f"{name}.dead")
    assert Poison.model_validate_json(dead.body) == Poison(number=1)
    assert runs == [1, 1, 1]


async def test_a_requeued_message_is_not_delayed_again(warren: Warren) -> None:
    class Remind(Command, queue="reminders"):
        text: str

    app, delay, seen = App(), Delay(), list[float]()
    app.include(delay)

    @app.handle(Remind)
    async def remind(message: Remind) -> None:
        seen.append(app.clock.now())
        if len(seen) == 1:
            raise Requeue

    async with warren.running(app):
        began = app.clock.now()
        await delay.after(Remind(text="milk"), timedelta(hours=1))
        await warren.advance(hours=1)
    assert [at - began for at in seen] == [3600, 3600]


async def test_a_deleted_dead_letter_queue_causes_no_redelivery_loop(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    class Ping(Command, queue=name):
        number: int

    app, runs = make_app(), list[int]()

    @app.handle(Ping, concurrency=1)
    async def ping(message: Ping) -> None:
        runs.append(message.number)
        if message.number == 0:
            raise LookupError

    async with app:
        await amqp_client.channel.queue_delete(f"{name}.dead")
        for number in range(6):
            await app.publish(Ping(number=number))
        await eventually(lambda: runs[-1:] == [5], "all others are handled")
    assert runs == [0, 0, 0, 1, 2, 3, 4, 5]


async def test_a_connection_without_free_channels_raises_and_keeps_working() -> None:
    async with Broker(BrokerConfig(channel_max=4)) as broker:
        app = App(broker.url)
        app.declare(Queue("parked"))
        async with app:
            await app.publish_many([b"1"] * 8, key="parked")
            fetched: list[FetchedMessage] = []

            async def take_all() -> None:
                while (delivery := await app.get("parked")) is not None:
                    fetched.append(delivery)

            with pytest.raises(TransportUnavailable, match="channel_max") as caught:
                await take_all()
            assert (caught.value.outcome, caught.value.retryable) == ("not_sent", True)
            assert fetched
            await fetched[0].ack()
            again = await app.get("parked")
            assert again is not None
            assert (app.statistics().reconnects, app.ready) == (0, True)
