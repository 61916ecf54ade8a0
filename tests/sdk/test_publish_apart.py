"""Independence of publishes: one that fails or is cancelled affects no other."""

from __future__ import annotations

import asyncio
from math import nan
from typing import Any

import pytest

from tests.sdk.conftest import MakeApp
from tests.support.async_client import AsyncClient
from tests.support.polling import eventually
from tests.support.proxy import Proxy
from warren.sdk import ConfigError, PublishError, Queue, Unroutable


async def test_a_header_that_cannot_be_encoded_fails_no_other_publish(make_app: MakeApp, name: str) -> None:
    endless: dict[str, Any] = {}
    endless["again"] = endless
    app = make_app()
    app.declare(Queue(name))
    async with app:
        for headers in ({"n": {1: 2}}, {"n": object()}, {"n": 2**70}, {"n": nan}, {"\ud800": 1}, endless):
            with pytest.raises(ConfigError, match="cannot be written to the wire"):
                await app.publish(b"0", key=name, headers=headers)
            with pytest.raises(ConfigError, match="cannot be written to the wire"):
                await app.publish(b"0", key=name, headers=headers, reliability="at_most_once")
        with pytest.raises(ConfigError, match="the message id is longer than 255 bytes"):
            await app.publish(b"0", key=name, message_id="x" * 256)
        for key, error in ((f"{name}.nobody", Unroutable), (name, None)):
            report = await app.publish_many([b"1"], key=key, timeout=60, on_error="report")
            assert [type(failure.error) for failure in report.failures] == ([error] if error else [])
        assert app.statistics().publisher.unconfirmed == 0


async def test_headers_that_fit_no_frame_are_refused_before_they_are_sent(
    make_app: MakeApp, name: str
) -> None:
    app = make_app()
    app.declare(Queue(name))
    async with app:
        with pytest.raises(ConfigError, match=r"the headers take \d+ bytes, and a frame of this broker \d+"):
            await app.publish(b"0", key=name, headers={"large": "x" * 200_000})
        await app.publish(b"1", key=name, headers={"large": "x" * 100_000})
        assert app.statistics().reconnects == 0


@pytest.mark.parametrize("reliability", ["at_least_once", "at_most_once"])
async def test_a_publish_that_closes_the_channel_costs_the_others_no_connection(
    make_app: MakeApp, amqp_client: AsyncClient, name: str, reliability: Any
) -> None:
    """Between channel.close and the App's answer other publishes are written in each turn of the event loop."""
    app = make_app()
    app.declare(Queue(name))
    async with app:
        for _ in range(5):
            refused = asyncio.create_task(app.publish(b"lost", exchange=f"{name}.nowhere", key=name))
            others = []
            for n in range(200):
                others.append(asyncio.create_task(app.publish(b"%d" % n, key=name, reliability=reliability)))
                await asyncio.sleep(0)
            with pytest.raises(PublishError, match="NOT_FOUND"):
                await refused
            await asyncio.gather(*others)
        assert app.statistics().reconnects == 0
        if reliability == "at_least_once":
            assert set(await amqp_client.drain(name)) == {b"%d" % n for n in range(200)}


async def test_at_most_once_needs_no_place_in_the_window(
    make_app: MakeApp, proxy: Proxy, amqp_client: AsyncClient, name: str
) -> None:
    app = make_app(proxy.url, window=1)
    app.declare(Queue(name))
    async with app:
        proxy.refuse()
        proxy.cut()
        await eventually(lambda: "publisher" in app.health().waiting, "the loss is noticed")
        publishing = asyncio.gather(
            *(app.publish(b"%d" % n, key=name, reliability="at_most_once") for n in range(3))
        )
        proxy.accept()
        async with asyncio.timeout(60):
            await publishing
        assert [(await amqp_client.take(name)).body for _ in range(3)] == [b"0", b"1", b"2"]


async def test_a_waiter_that_gives_up_when_its_turn_comes_wakes_the_next(
    make_app: MakeApp, proxy: Proxy, amqp_client: AsyncClient, name: str
) -> None:
    app = make_app(proxy.url, window=1)
    app.declare(Queue(name))
    async with app:
        proxy.to_client.hold()

        async def publish_and_cancel_the_next() -> None:
            await app.publish(b"first", key=name)
            waiting[0].cancel()

        first = asyncio.create_task(publish_and_cancel_the_next())
        await eventually(lambda: app.statistics().publisher.unconfirmed == 1, "the window is full")
        waiting = [asyncio.create_task(app.publish(body, key=name)) for body in (b"second", b"third")]
        await asyncio.sleep(0)
        proxy.to_client.release()
        async with asyncio.timeout(60):
            await asyncio.gather(first, waiting[1])
        assert waiting[0].cancelled()
        assert [(await amqp_client.take(name)).body for _ in range(2)] == [b"first", b"third"]


async def test_a_refused_at_most_once_publish_fails_no_confirmed_publish(
    make_app: MakeApp, proxy: Proxy, amqp_client: AsyncClient, name: str
) -> None:
    app = make_app(proxy.url)
    app.declare(Queue(name))
    async with app:
        proxy.to_server.hold()
        await app.publish(b"x", key=name, headers={"CC": "no list"}, reliability="at_most_once")
        awaited = asyncio.create_task(app.publish(b"awaited", key=name))
        await eventually(
            lambda: app.statistics().publisher.unconfirmed == 1, "it is in flight behind the other"
        )
        proxy.to_server.release()
        async with asyncio.timeout(60):
            await awaited
        with pytest.raises(PublishError, match="CC"):
            await app.publish(b"x", key=name, headers={"CC": "no list"})


async def test_a_message_that_closes_the_channel_fails_alone_and_the_others_are_confirmed(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    app = make_app()
    app.declare(Queue(name))
    async with app:
        # Behind a refusal they go again one at a time, each when the disk has the one before: that may take long.
        results = await asyncio.gather(
            *(app.publish(b"good%d" % n, key=name, timeout=240) for n in range(20)),
            app.publish(b"bad", key=name, headers={"CC": "no list"}, timeout=240),
            *(app.publish(b"good%d" % n, key=name, timeout=240) for n in range(20, 40)),
            app.publish(b"bad too", key=name, headers={"BCC": "no list"}, timeout=240),
            return_exceptions=True,
        )
        assert [n for n, result in enumerate(results) if result is not None] == [20, 41]
        for n in (20, 41):
            error = results[n]
            assert isinstance(error, PublishError)
            assert error.outcome == "refused"
        assert app.statistics().reconnects == 0, "the connection stays; only the channel is a new one"
        await app.publish(b"after", key=name)
    bodies = await amqp_client.drain(name)
    assert {*bodies} == {b"after", *(b"good%d" % n for n in range(40))}
