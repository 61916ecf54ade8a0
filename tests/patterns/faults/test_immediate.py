"""Immediate in every fault."""

from __future__ import annotations

import asyncio

import pytest

from tests.patterns.conftest import NewApp
from tests.patterns.faults.matrix import Fault, Matrix
from tests.patterns.faults.scenarios import Process, restart, start_process
from tests.support.async_client import take_one
from tests.support.broker_process import BrokerProcess
from tests.support.polling import eventually
from tests.support.proxy import Proxy
from tests.support.worker_processes import Workers
from warren.patterns import Immediate, NoConsumer
from warren.sdk import App, Message, PublishTimeout

MATRIX = Matrix("immediate", page="docs/patterns/immediate.md")


class Ring(Message):
    number: int


class House(Process):
    """A process that publishes to the bell, and is its consumer if `handles`."""

    def __init__(self, app: App, name: str, *, handles: bool = True) -> None:
        super().__init__(app, name)
        self.bell = Immediate(name, timeout=60)
        app.include(self.bell)
        if handles:

            @self.bell.handle(Ring, concurrency=1)
            async def hear(ring: Ring) -> None:
                await self.handle(ring.number)

    async def publish(self, number: int) -> None:
        await self.bell.publish(Ring(number=number), message_id=f"m{number}")


@MATRIX.shows(
    Fault.CRASH_BEFORE_EFFECT,
    "the publisher has got the receipt; the message returns to its queue, expires at once, and is kept in"
    " `<queue>.dead`",
)
@MATRIX.shows(
    Fault.CRASH_AFTER_EFFECT,
    "the same; a message in `<queue>.dead` with the reason `expired` may have had its effect",
)
@pytest.mark.parametrize("stops", ["before", "after"])
async def test_the_consumer_dies(
    amqp_url: str, workers: Workers, new_app: NewApp, name: str, stops: str
) -> None:
    publisher = House(new_app(), name, handles=False)
    doomed = await start_process(workers, House, amqp_url, stops, name=name)
    async with publisher.app:
        await publisher.publish(1)
        await workers.wait_for("stopped")
        doomed.kill()
        assert (await take_one(amqp_url, f"{name}.dead")).message_id == "m1"
        with pytest.raises(NoConsumer):
            await publisher.publish(2)


@MATRIX.shows(
    Fault.LOST_ACK,
    "the message returns to its queue, expires at once, and is kept in `<queue>.dead`; it is not handled "
    "again",
)
async def test_the_acknowledgement_is_lost(amqp_url: str, new_app: NewApp, name: str) -> None:
    publisher = House(new_app(), name, handles=False)
    async with Proxy(amqp_url) as proxy, publisher.app:
        consumer = House(App(proxy.url), name)

        received, held = asyncio.Event(), asyncio.Event()

        async def lose_acknowledgement(number: int) -> None:
            await received.wait()
            proxy.to_server.hold()
            held.set()

        consumer.after = lose_acknowledgement  # type: ignore[method-assign]
        async with consumer.app:
            await publisher.publish(1)
            received.set()
            await held.wait()
            proxy.refuse()
            proxy.cut()
            assert (await take_one(amqp_url, f"{name}.dead")).message_id == "m1"
            proxy.accept()
            proxy.to_server.release()
            await eventually(lambda: consumer.app.ready, "the consumer is connected again")
    assert consumer.handled == [1]


@MATRIX.shows(
    Fault.LOST_CONFIRM,
    "the message is published again with the same id and may be handled twice; if neither confirm nor "
    "receipt arrives in time, `PublishTimeout` is raised: a consumer may have the message",
)
async def test_neither_confirm_nor_receipt_arrives(amqp_url: str, new_app: NewApp, name: str) -> None:
    consumer = House(new_app(), name)
    async with consumer.app, Proxy(amqp_url) as proxy:
        away = App(proxy.url)
        bell = Immediate(name, timeout=0.5)
        away.include(bell)
        async with away:
            proxy.to_client.hold()
            with pytest.raises(PublishTimeout) as caught:
                await bell.publish(Ring(number=1))
            assert caught.value.outcome == "unknown"
            proxy.to_client.release()
        await eventually(lambda: consumer.handled == [1], "it was heard")


@MATRIX.shows(Fault.DUPLICATE, "a message that is published twice is handled twice")
@MATRIX.shows(
    Fault.REORDERING,
    "messages do not wait, so none is overtaken; a consumer begins in the order of arrival",
)
async def test_duplicates_are_handled_in_the_order_of_arrival(new_app: NewApp, name: str) -> None:
    publisher, consumer = House(new_app(), name, handles=False), House(new_app(), name)
    async with consumer.app, publisher.app:
        for before, number in enumerate((1, 2, 2, 3)):
            await publisher.publish(number)
            # Until the broker has this from whoever listens, nobody is free to take the next one.
            await eventually(
                lambda before=before: consumer.app.statistics().subscriptions[name].acknowledged > before,  # type: ignore[misc]
                "it is acknowledged",
            )
        await eventually(lambda: len(consumer.handled) == 4, "all are heard")
    assert consumer.handled == [1, 2, 2, 3]


@MATRIX.shows(
    Fault.BROKER_RESTART,
    "a message that a consumer had is kept in `<queue>.dead`; the next message goes to a consumer that is"
    " connected again",
)
async def test_the_broker_is_killed(mortal_broker: BrokerProcess, name: str) -> None:
    publisher, consumer = (
        House(App(mortal_broker.url), name, handles=False),
        House(App(mortal_broker.url), name),
    )
    go_on = asyncio.Event()

    async def wait(number: int) -> None:
        await go_on.wait()

    consumer.before = wait  # type: ignore[method-assign]
    async with publisher.app, consumer.app:
        await publisher.publish(1)
        await restart(mortal_broker)
        assert (await take_one(mortal_broker.url, f"{name}.dead")).message_id == "m1"
        go_on.set()
        await eventually(lambda: consumer.app.ready and publisher.app.ready, "all are there again")
        await publisher.publish(2)
        await eventually(lambda: 2 in consumer.handled, "it is heard")


MATRIX.spared(
    Fault.STORE_DOWN,
    "no effect: there is no store",
)
MATRIX.spared(
    Fault.CLOCK_SKEW,
    "no effect: a TTL of 0 needs no clock",
)
