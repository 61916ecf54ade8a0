"""A stop that has nothing to wait for: incomplete batches, pauses before another attempt, and calls by a handler itself."""

from __future__ import annotations

import asyncio

import pytest

from tests.sdk.conftest import MakeApp
from tests.support.async_client import AsyncClient
from tests.support.polling import eventually
from warren.sdk import Command, ConfigError, Queue, Retry, RetryLater, Router, RunningRouter

GRACE = 3600.0
"""Seconds; a stop that waits for its end fails the test by its time limit."""


async def test_an_incomplete_batch_is_handled(make_app: MakeApp, amqp_client: AsyncClient, name: str) -> None:
    app = make_app(grace=GRACE)
    batches: list[list[bytes]] = []

    @app.handle.batch(bytes, queue=name, size=100, within="1h")
    async def store(rows: list[bytes]) -> None:
        batches.append(rows)

    async with app:
        for body in (b"1", b"2"):
            await app.publish(body, key=name)
        await eventually(lambda: app.statistics().handlers[name].gathering == 2, "the batch has two messages")
    assert batches == [[b"1", b"2"]]
    await amqp_client.holds(name, 0)


async def test_a_message_that_waits_for_its_next_attempt_returns_to_its_queue(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    app = make_app(grace=GRACE)
    runs = 0

    @app.handle(bytes, queue=name, retry=Retry(2, first_wait="1h", longest_wait="1h"))
    async def handle(body: bytes) -> None:
        nonlocal runs
        runs += 1
        raise ValueError("busy")

    async with app:
        await app.publish(b"1", key=name)
        await eventually(
            lambda: app.statistics().handlers[name].failed_attempts == 1, "the first attempt failed"
        )
    assert runs == 1
    await amqp_client.holds(name, 1)
    await amqp_client.holds(f"{name}.dead", 0)


async def test_an_attempt_that_fails_after_the_stop_began_is_not_repeated(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    app = make_app(grace=GRACE)
    runs = 0
    go_on = asyncio.Event()

    @app.handle(bytes, queue=name, retry=Retry(2, first_wait="1h", longest_wait="1h"))
    async def handle(body: bytes) -> None:
        nonlocal runs
        runs += 1
        await go_on.wait()
        raise ValueError("busy")

    async with app:
        await app.publish(b"1", key=name)
        await eventually(lambda: runs == 1, "it runs")
        asyncio.get_running_loop().call_soon(go_on.set)
    assert runs == 1
    await amqp_client.holds(name, 1)


async def test_a_message_of_a_stream_that_waits_to_be_repeated_is_not_waited_for(
    make_app: MakeApp, name: str
) -> None:
    app = make_app(grace=GRACE)
    runs = 0

    @app.handle(bytes, stream=Queue(name, type="stream"), reader="r", offset="first")
    async def handle(body: bytes) -> None:
        nonlocal runs
        runs += 1
        raise RetryLater("1h")

    async with app:
        await app.publish(b"1", key=name)
        await eventually(lambda: next(iter(app.statistics().handlers.values())).delayed == 1, "it waits")
    assert runs == 1


async def test_a_handler_that_stops_its_app_is_told_how(make_app: MakeApp, name: str) -> None:
    class Finish(Command, queue=name):
        pass

    app = make_app(grace=GRACE)
    stopped: list[asyncio.Task[None]] = []

    @app.handle(Finish)
    async def finish(message: Finish) -> None:
        with pytest.raises(ConfigError, match=r"asyncio.create_task\(app.stop\(\)\)"):
            await app.stop()
        stopped.append(asyncio.create_task(app.stop()))

    await app.start()
    await app.publish(Finish())
    await eventually(lambda: bool(stopped), "it runs")
    await stopped[0]
    assert not app.ready


async def test_a_handler_that_removes_its_router_is_told_how(make_app: MakeApp, name: str) -> None:
    class Finish(Command, queue=name):
        pass

    app, router = make_app(grace=GRACE), Router()
    running: list[RunningRouter] = []
    removed: list[asyncio.Task[None]] = []

    @router.handle(Finish)
    async def finish(message: Finish) -> None:
        with pytest.raises(ConfigError, match=r"asyncio.create_task\(running.remove\(\)\)"):
            await running[0].remove()
        removed.append(asyncio.ensure_future(running[0].remove()))

    async with app:
        running.append(await app.include_now(router))
        await app.publish(Finish())
        await eventually(lambda: bool(removed), "it runs")
        await removed[0]
        assert name not in app.subscriptions
