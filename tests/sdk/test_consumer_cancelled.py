"""Consumers that the broker cancels, because their queue or stream is deleted: every wait ends, and calls go on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest

from tests.sdk.conftest import MakeApp
from tests.support.async_client import AsyncClient
from tests.support.broker_process import BrokerProcess
from tests.support.operator_cli import Operator, warren_ctl
from tests.support.polling import eventually
from tests.support.rabbitmq import RabbitMQ
from warren.sdk import (
    App,
    Delivery,
    Queue,
    ReplayStopped,
    Request,
    State,
    TopologyMismatch,
    TransportUnavailable,
)
from warren.sdk.extend import DataChannel, Session, read_last_chunk


class Operated(NamedTuple):
    """A broker, and the command of its operator that deletes a queue, also one that is exclusive to a connection."""

    url: str
    delete_queue: Callable[[str], object]


@pytest.fixture
def operated(request: pytest.FixtureRequest, amqp_url: str) -> Operated:
    if request.config.getoption("--amqp-url") is None:
        broker: BrokerProcess = request.getfixturevalue("broker")
        operator = Operator(warren_ctl(broker.data_dir), broker.url, is_warren=True)
        return Operated(broker.url, partial(operator, "delete_queue"))
    if request.config.getoption("--amqp-url") != "rabbitmq":
        pytest.skip("its operator is not known")
    rabbitmq: RabbitMQ = request.getfixturevalue("rabbitmq")
    return Operated(amqp_url, partial(rabbitmq.ctl, "delete_queue"))


async def test_a_deleted_reply_queue_is_replaced(operated: Operated, name: str) -> None:
    class Ask(Request[str], queue=name):
        body: str

    server, client = App(operated.url, grace=0), App(operated.url)
    addresses: list[str] = []
    asked = asyncio.Event()

    @server.handle(Ask)
    async def ask(request: Ask, delivery: Delivery) -> str:
        addresses.append(str(delivery.properties["reply_to"]))
        if request.body == "wait":
            asked.set()
            await asyncio.Event().wait()
        return request.body

    async with server, client:
        assert await client.call(Ask(body="1"), timeout=60) == "1"
        waiting = asyncio.ensure_future(client.call(Ask(body="wait"), timeout=60))
        await asked.wait()
        operated.delete_queue(addresses[0])
        with pytest.raises(TransportUnavailable, match="the reply queue was deleted") as caught:
            await waiting
        assert await client.call(Ask(body="2"), timeout=60) == "2"
        await eventually(lambda: client.statistics().state is State.READY, "the App is ready again")
        statistics = client.statistics()
    assert caught.value.outcome == "unknown"
    assert addresses[0] == addresses[1] != addresses[2]
    assert statistics.reconnects == 0


async def test_a_get_from_a_deleted_queue_ends(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    app = make_app()
    await amqp_client.channel.declare_queue(name, durable=True)
    async with app:
        getting = asyncio.ensure_future(app.get(name, timeout=60))
        await amqp_client.has_consumers(name, 1)
        await amqp_client.channel.queue_delete(name)
        async with asyncio.timeout(30):
            with pytest.raises(TopologyMismatch) as caught:
                await getting
    assert caught.value.reply_code == 404


async def test_the_end_of_an_empty_stream_that_is_deleted_is_not_awaited(
    amqp_url: str, amqp_client: AsyncClient, name: str
) -> None:
    await amqp_client.channel.declare_queue(name, durable=True, arguments={"x-queue-type": "stream"})
    consuming = asyncio.Event()

    class WatchedChannel(DataChannel):
        async def consume(self, *arguments: Any, **named: Any) -> str:
            tag = await super().consume(*arguments, **named)
            consuming.set()
            return tag

    session = await Session.open(amqp_url, "test", lambda reason: None, WatchedChannel)
    try:
        reading = asyncio.ensure_future(read_last_chunk(session, name, 60.0))
        await consuming.wait()
        await amqp_client.channel.queue_delete(name)
        async with asyncio.timeout(30):
            with pytest.raises(TransportUnavailable, match="the broker cancelled the consumer"):
                await reading
    finally:
        await session.close()


async def test_a_replay_of_a_deleted_stream_stops(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    app = make_app()
    deleted = asyncio.Event()
    replayed: list[bytes] = []

    @app.handle(bytes, stream=Queue(name, type="stream"), reader="reader", prefetch=1, offset="next")
    async def take(body: bytes, delivery: Delivery) -> None:
        if delivery.replayed:
            replayed.append(body)
            if not deleted.is_set():
                await amqp_client.channel.queue_delete(name)
                deleted.set()

    async with app:
        await app.publish_many([b"%d" % number for number in range(300)], key=name)
        await app.subscriptions[f"{name}.reader"].cancel()
        async with asyncio.timeout(60):
            with pytest.raises(ReplayStopped) as caught:
                await app.replay_stream(name, reader="reader", start="first")
    assert caught.value.retryable
    assert caught.value.offset == len(replayed)
