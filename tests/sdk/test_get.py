"""`app.get`: a fetched message stays unacknowledged until it is settled, and is never lost."""

from __future__ import annotations

import asyncio

import pytest

from tests.sdk.conftest import MakeApp
from tests.support.async_client import AsyncClient
from tests.support.proxy import Proxy
from warren.sdk import (
    App,
    Command,
    ConfigError,
    Queue,
    TopologyMismatch,
    TransportUnavailable,
    Undecodable,
)


async def test_one_message_or_none(make_app: MakeApp, amqp_client: AsyncClient, name: str) -> None:
    class Parked(Command, queue=name):
        number: int

    app = make_app()
    app.publishes(Parked)
    async with app:
        assert await app.get(name) is None
        await app.publish(Parked(number=7), message_id="m", headers={"tenant": "a"})
        message = await app.get(name)
        assert message is not None
        assert (message.read(Parked), message.message_id, message.queue) == (Parked(number=7), "m", name)
        assert (message.headers["tenant"], message.type, message.redelivered) == ("a", "parked", False)
        assert await app.get(name) is None, "the only message is unacknowledged"
        with pytest.raises(Undecodable):
            message.read(list[int])
        await message.ack()
        with pytest.raises(ConfigError, match="settled already"):
            await message.requeue()
    await amqp_client.holds(name, 0)


async def test_get_waits_for_a_message_up_to_its_timeout(make_app: MakeApp, name: str) -> None:
    app = make_app()
    app.declare(Queue(name))
    async with app:
        waiting = [asyncio.create_task(app.get(name, timeout=60)) for _ in range(2)]
        await asyncio.sleep(0)
        await app.publish_many([b"1", b"2"], key=name)
        got = [message for message in await asyncio.gather(*waiting) if message is not None]
        assert sorted(message.body for message in got) == [b"1", b"2"]
        for message in got:
            await message.ack()
        assert await app.get(name, timeout=0.05) is None


async def test_a_fetched_message_can_be_requeued_or_dead_lettered(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    app = make_app()
    app.declare(Queue(name), Queue(f"{name}.plain", dead_letter_exchange=None))
    async with app:
        await app.publish(b"1", key=name)
        message = await app.get(name)
        assert message is not None
        await message.requeue()
        again = await app.get(name, timeout=60)
        assert again is not None
        assert again.redelivered
        await again.dead_letter("nobody wants it")
        dead = await amqp_client.take(f"{name}.dead")
        assert (dead.body, dead.headers["warren-dead-reason"]) == (b"1", "rejected")
        assert dead.headers["warren-dead-error"] == "DeadLetter: nobody wants it"

        await app.publish(b"2", key=f"{name}.plain")
        plain = await app.get(f"{name}.plain")
        assert plain is not None
        with pytest.raises(ConfigError, match="has no dead letter exchange"):
            await plain.dead_letter("no")
        await amqp_client.holds(f"{name}.plain", 1)
    await amqp_client.holds(name, 0)


async def test_a_with_block_acknowledges_or_requeues(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    app = make_app()
    app.declare(Queue(name))
    async with app:
        await app.publish(b"1", key=name)
        message = await app.get(name)
        assert message is not None
        with pytest.raises(ZeroDivisionError):
            async with message:
                raise ZeroDivisionError
        message = await app.get(name, timeout=60)
        assert message is not None
        async with message as delivery:
            assert delivery.body == b"1"
        message = await app.get(name)
        assert message is None
        await app.publish(b"2", key=name)
        unsettled = await app.get(name)
        assert unsettled is not None
    await amqp_client.holds(name, 1)
    with pytest.raises(TransportUnavailable, match="delivered again"):
        await unsettled.ack()


async def test_a_cancelled_get_takes_no_message(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    app = make_app()
    app.declare(Queue(name))
    async with app:
        for turns in range(12):
            getting = asyncio.create_task(app.get(name, timeout=0.1))
            for _ in range(turns * 3):
                await asyncio.sleep(0)
            await app.publish(b"1", key=name)
            getting.cancel()
            await asyncio.wait((getting,))
            if not getting.cancelled() and (early := getting.result()) is not None:
                await early.requeue()
            message = await app.get(name, timeout=60)
            assert message is not None
            await message.ack()
    await amqp_client.holds(name, 0)


async def test_get_raises_for_a_missing_queue(
    make_app: MakeApp, proxy: Proxy, amqp_client: AsyncClient, name: str
) -> None:
    app = make_app(proxy.url)
    app.declare(Queue(name))
    async with app:
        with pytest.raises(TopologyMismatch, match="NOT_FOUND"):
            await app.get(f"{name}.missing")
        waiting = asyncio.create_task(app.get(name, timeout=240))
        await amqp_client.has_consumers(name, 1)
        proxy.cut()
        with pytest.raises(TransportUnavailable):
            await waiting
        assert await app.get(name) is None, "on the next connection"
    with pytest.raises(ConfigError, match="does not run"):
        await App("amqp://localhost").get(name)
