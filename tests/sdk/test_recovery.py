"""Recovery of connections, channels, consumers, queues and the broker."""

from __future__ import annotations

import asyncio

import pytest
from aiormq.exceptions import ChannelPreconditionFailed

from tests.sdk.conftest import MakeApp
from tests.support.async_client import AsyncClient, async_client
from tests.support.broker_process import BrokerProcess
from tests.support.polling import eventually
from tests.support.proxy import Proxy
from warren.sdk import App, Command, Event, Queue, State, TopologyMismatch, TransportUnavailable
from warren.sdk.consume.subscription import Subscription
from warren.sdk.transport.supervised_connection import FIRST_RETRY_SECONDS


async def test_consumers_are_back_after_a_lost_connection_and_ready_says_so(
    make_app: MakeApp, proxy: Proxy, name: str
) -> None:
    class Ping(Command, queue=name):
        number: int

    app = make_app(proxy.url)
    seen: asyncio.Queue[int] = asyncio.Queue()

    @app.handle(Ping)
    async def ping(message: Ping) -> None:
        seen.put_nowait(message.number)

    assert (app.state, app.ready) == (State.CLOSED, False)
    async with app:
        states = [app.state]
        for number in range(3):
            proxy.cut()
            await eventually(lambda: not app.ready, "the loss is noticed")
            states.append(app.state)
            await app.publish(Ping(number=number))
            # The one before comes again if the connection was cut before its acknowledgement had left.
            while (got := await asyncio.wait_for(seen.get(), 60)) != number:
                assert got < number
            await eventually(lambda: app.ready, "it is ready again")
        assert app.statistics().reconnects == 6
    assert states == [State.READY, *[State.CONNECTING] * 3]
    assert [app.state] == [State.CLOSED]


async def test_the_first_retry_comes_at_once(make_app: MakeApp, proxy: Proxy, name: str) -> None:
    """The wait is random below a bound, and one attempt is enough for each of the two connections."""
    assert FIRST_RETRY_SECONDS <= 0.05
    async with make_app(proxy.url) as app:
        proxy.cut()
        await eventually(lambda: not app.ready, "the loss is noticed")
        await eventually(lambda: app.ready, "it is ready again")
        assert (proxy.accepted, app.statistics().reconnects) == (4, 2)


async def test_a_queue_deleted_under_its_consumer_is_declared_again(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    class Happened(Event, exchange=f"{name}.x", key="k"):
        pass

    app = make_app()
    seen: asyncio.Queue[None] = asyncio.Queue()

    @app.handle(Happened, queue=name)
    async def happened(event: Happened) -> None:
        seen.put_nowait(None)

    async with app:
        for _ in range(2):
            await amqp_client.channel.queue_delete(name)
            await eventually(lambda: not app.ready, "the consumer is gone")
            await eventually(lambda: app.ready, "the consumer is back")
            await app.publish(Happened())
            await asyncio.wait_for(seen.get(), 60)


async def test_topology_that_the_broker_lost_is_declared_again(
    make_app: MakeApp, proxy: Proxy, amqp_client: AsyncClient, name: str
) -> None:
    class Happened(Event, exchange=f"{name}.x", key="k", audience=[f"{name}.audience"]):
        pass

    app = make_app(proxy.url)
    app.declare(Queue(name))
    async with app:
        await app.publish(Happened())
        proxy.refuse()
        proxy.cut()
        await amqp_client.channel.queue_delete(name)
        await amqp_client.channel.queue_delete(f"{name}.audience")
        await amqp_client.channel.exchange_delete(f"{name}.x")
        proxy.accept()
        await app.publish(Happened())
        await app.publish(b"1", key=name)
        assert (await amqp_client.take(name)).body == b"1"
        assert (await amqp_client.take(f"{name}.audience")).body == b"{}"


async def test_stopping_while_there_is_no_broker_takes_no_time(
    make_app: MakeApp, proxy: Proxy, name: str
) -> None:
    app = make_app(proxy.url, grace=240)

    @app.handle(bytes, queue=name)
    async def take(body: bytes) -> None: ...

    await app.start()
    proxy.refuse()
    proxy.cut()
    # Of the connection for publishing: what is written to it is waited for.
    await eventually(lambda: "publisher" in app.health().waiting, "the loss is noticed")
    waiting = asyncio.create_task(app.publish(b"1", key=name))
    await eventually(lambda: waiting.get_loop() is not None, "it waits")
    async with asyncio.timeout(60):
        await app.stop()
        result = (await asyncio.gather(waiting, return_exceptions=True))[0]
    assert isinstance(result, TransportUnavailable)
    proxy.accept()


async def test_a_declaration_without_a_broker_fails_when_the_app_stops(
    make_app: MakeApp, proxy: Proxy, name: str
) -> None:
    app = make_app(proxy.url)
    await app.start()
    proxy.refuse()
    proxy.cut()
    await eventually(lambda: not app.ready, "the loss is noticed")
    waiting = asyncio.create_task(app.declare_now(Queue(name)))
    await asyncio.sleep(0)
    await app.stop()
    proxy.accept()
    async with asyncio.timeout(60):
        with pytest.raises(TransportUnavailable, match="the App stopped"):
            await waiting


async def test_reconnects_leave_nothing_behind(make_app: MakeApp, proxy: Proxy, name: str) -> None:
    app = make_app(proxy.url, longest_retry=0.1)

    @app.handle(bytes, queue=name)
    async def take(body: bytes) -> None: ...

    async with app:
        tasks = len(asyncio.all_tasks())
        for number in range(20):
            proxy.cut()
            await eventually(lambda: not app.ready, "the loss is noticed")
            if number % 2:
                await eventually(lambda: app.ready, "it is ready again")
        await eventually(lambda: app.ready, "it is ready again")
        await eventually(lambda: len(asyncio.all_tasks()) <= tasks, "no task is left of an old connection")


async def test_a_killed_broker_that_comes_back_loses_nothing_confirmed(
    broker: BrokerProcess, name: str
) -> None:
    class Ping(Command, queue=name):
        number: int

    app = App(broker.url)
    seen: set[int] = set()

    @app.handle(Ping)
    async def ping(message: Ping) -> None:
        seen.add(message.number)

    async with app:
        pings = [Ping(number=number) for number in range(10_000)]
        publishing = asyncio.create_task(app.publish_many(pings, timeout=240))
        await eventually(
            lambda: len(seen) > 50 and app.statistics().publisher.unconfirmed > 0, "it is in full swing"
        )
        # Not in a thread: while that is waited for, everything could be confirmed.
        broker.kill()
        await asyncio.to_thread(broker.start)
        assert (await publishing).confirmed == 10_000
        await eventually(lambda: len(seen) == 10_000, "all have come")
        assert app.statistics().publisher.republished > 0


async def test_the_reason_why_a_queue_cannot_be_declared_again_is_logged(
    make_app: MakeApp,
    amqp_url: str,
    name: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The first attempt after a consumer that stood for a while brings nothing back.
    monkeypatch.setattr("warren.sdk.consume.subscription.STABLE_SECONDS", 3600.0)
    app = make_app(first_retry=0.2, longest_retry=0.2)

    @app.handle(bytes, queue=name)
    async def take(body: bytes) -> None: ...

    async with app:
        subscription = app.subscriptions[name]
        for _ in range(50):
            async with async_client(amqp_url) as client:
                await client.channel.queue_delete(name)
                try:
                    await client.channel.declare_queue(name, durable=True)
                except ChannelPreconditionFailed:
                    continue  # the App was faster
                break
        # A consumer that finds no queue is a mismatch as well, but no reason why there is none.
        await eventually(lambda: _refused(subscription), "it says why")
        assert f"event=topology.redeclare_failed queue={name} error=" in caplog.text
        async with async_client(amqp_url) as client:
            await client.channel.queue_delete(name)
        await eventually(lambda: app.ready and subscription.error is None, "it is back")


def _refused(subscription: Subscription) -> bool:
    return isinstance(subscription.error, TopologyMismatch) and subscription.error.reply_code == 406
