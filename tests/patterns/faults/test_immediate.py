"""Immediate in every fault."""

from __future__ import annotations

import asyncio

import pytest

from tests.patterns.conftest import NewApp
from tests.patterns.faults.matrix import Fault, Matrix
from tests.support.async_client import take_one
from tests.support.broker_process import BrokerProcess
from tests.support.polling import eventually
from tests.support.proxy import Proxy
from tests.support.worker_host import WorkerChannel
from tests.support.worker_processes import Workers
from warren.patterns import Immediate, NoConsumer
from warren.sdk import App, Message, PublishTimeout

MATRIX = Matrix("immediate", page="docs/patterns/immediate.md")


class Ring(Message):
    number: int


class House:
    """Consumer of the bell."""

    def __init__(self, app: App, name: str, *, hears: bool = True) -> None:
        self.app = app
        self.bell = Immediate(name, timeout=60)
        self.heard: list[int] = []
        app.include(self.bell)
        if hears:

            @self.bell.handle(Ring, concurrency=1)
            async def hear(ring: Ring) -> None:
                await self.before()
                self.heard.append(ring.number)
                await self.after()

    async def before(self) -> None:
        """Run before the effect; tests override this."""

    async def after(self) -> None:
        """Run after the effect; tests override this."""


async def house(worker: WorkerChannel, url: str, queue: str, stop: str) -> None:
    its = House(App(url), queue)

    async def stand() -> None:
        await worker.report_and_wait("here")

    if stop == "before":
        its.before = stand  # type: ignore[method-assign]
    else:
        its.after = stand  # type: ignore[method-assign]
    async with its.app:
        worker.report("at home")
        await asyncio.Event().wait()


@MATRIX.shows(
    Fault.CRASH_BEFORE_EFFECT,
    "the publisher has got the receipt; the message returns to its queue, expires at once, and is kept in"
    " `<queue>.dead`",
)
@MATRIX.shows(
    Fault.CRASH_AFTER_EFFECT,
    "the same; a message in `<queue>.dead` with the reason `expired` may have had its effect",
)
@pytest.mark.parametrize("stop", ["before", "after"])
async def test_the_consumer_dies(
    amqp_url: str, workers: Workers, new_app: NewApp, name: str, stop: str
) -> None:
    street = House(new_app(), name, hears=False)
    doomed = await workers.start(house, url=amqp_url, queue=name, stop=stop)
    await workers.wait_for("at home")
    async with street.app:
        await street.bell.publish(Ring(number=1), message_id="m1")
        await workers.wait_for("here")
        doomed.kill()
        assert (await take_one(amqp_url, f"{name}.dead")).message_id == "m1"
        with pytest.raises(NoConsumer):
            await street.bell.publish(Ring(number=2))


@MATRIX.shows(
    Fault.LOST_ACK,
    "the message returns to its queue, expires at once, and is kept in `<queue>.dead`; it is not handled "
    "again",
)
async def test_the_acknowledgement_is_lost(amqp_url: str, new_app: NewApp, name: str) -> None:
    street = House(new_app(), name, hears=False)
    async with Proxy(amqp_url) as proxy, street.app:
        home = House(App(proxy.url), name)

        received, deaf = asyncio.Event(), asyncio.Event()

        async def deafen() -> None:
            await received.wait()
            proxy.to_server.hold()
            deaf.set()

        home.after = deafen  # type: ignore[method-assign]
        async with home.app:
            await street.bell.publish(Ring(number=1), message_id="m1")
            received.set()
            await deaf.wait()
            proxy.refuse()
            proxy.cut()
            assert (await take_one(amqp_url, f"{name}.dead")).message_id == "m1"
            proxy.accept()
            proxy.to_server.release()
            await eventually(lambda: home.app.ready, "somebody is at home again")
    assert home.heard == [1]


@MATRIX.shows(
    Fault.LOST_CONFIRM,
    "the message is published again with the same id and may be handled twice; if neither confirm nor "
    "receipt arrives in time, `PublishTimeout` is raised: a consumer may have the message",
)
async def test_nothing_comes_back(amqp_url: str, new_app: NewApp, name: str) -> None:
    home = House(new_app(), name)
    async with home.app, Proxy(amqp_url) as proxy:
        away = App(proxy.url)
        bell = Immediate(name, timeout=0.5)
        away.include(bell)
        async with away:
            proxy.to_client.hold()
            with pytest.raises(PublishTimeout) as caught:
                await bell.publish(Ring(number=1))
            assert caught.value.outcome == "unknown"
            proxy.to_client.release()
        await eventually(lambda: home.heard == [1], "it was heard")


@MATRIX.shows(Fault.DUPLICATE, "a message that is published twice is handled twice")
@MATRIX.shows(
    Fault.REORDERING,
    "messages do not wait, so none is overtaken; a consumer begins in the order of arrival",
)
async def test_twice_and_in_order(new_app: NewApp, name: str) -> None:
    street, home = House(new_app(), name, hears=False), House(new_app(), name)
    async with home.app, street.app:
        for before, number in enumerate((1, 2, 2, 3)):
            await street.bell.publish(Ring(number=number), message_id=f"m{number}")
            # Until the broker has this from whoever listens, nobody is free to take the next one.
            await eventually(
                lambda before=before: home.app.statistics().subscriptions[name].acknowledged > before,  # type: ignore[misc]
                "it is acknowledged",
            )
        await eventually(lambda: len(home.heard) == 4, "all are heard")
    assert home.heard == [1, 2, 2, 3]


@MATRIX.shows(
    Fault.BROKER_RESTART,
    "a message that a consumer had is kept in `<queue>.dead`; the next message goes to a consumer that is"
    " connected again",
)
async def test_the_broker_is_killed(mortal_broker: BrokerProcess, name: str) -> None:
    street, home = House(App(mortal_broker.url), name, hears=False), House(App(mortal_broker.url), name)
    go_on = asyncio.Event()
    home.before = go_on.wait  # type: ignore[assignment]
    async with street.app, home.app:
        await street.bell.publish(Ring(number=1), message_id="m1")
        await asyncio.to_thread(mortal_broker.kill)
        await asyncio.to_thread(mortal_broker.start)
        assert (await take_one(mortal_broker.url, f"{name}.dead")).message_id == "m1"
        go_on.set()
        await eventually(lambda: home.app.ready and street.app.ready, "all are there again")
        await street.bell.publish(Ring(number=2))
        await eventually(lambda: 2 in home.heard, "it is heard")


MATRIX.spared(
    Fault.STORE_DOWN,
    "no effect: there is no store",
)
MATRIX.spared(
    Fault.CLOCK_SKEW,
    "no effect: a TTL of 0 needs no clock",
)
