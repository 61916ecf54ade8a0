"""Stopping an App: running handlers finish, other deliveries are requeued."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from tests.sdk.conftest import MakeApp
from tests.support.async_client import AsyncClient
from tests.support.polling import eventually
from warren.sdk import App, Command, Queue


async def test_stopping_finishes_running_handlers_and_requeues_the_rest(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    class Ping(Command, queue=name):
        number: int

    app = make_app()
    started, finish = asyncio.Event(), asyncio.Event()
    done: list[int] = []

    @app.handle(Ping, concurrency=1)
    async def ping(message: Ping) -> None:
        started.set()
        await finish.wait()
        await app.publish(b"effect", key=f"{name}.dead")
        done.append(message.number)

    await app.start()
    await app.publish_many([Ping(number=number) for number in range(10)])
    await started.wait()
    stopping = asyncio.create_task(app.stop())
    await eventually(lambda: app.state.value == "closing", "it stops")
    finish.set()
    await stopping
    assert done == [0]
    await amqp_client.holds(name, 9)
    await amqp_client.holds(f"{name}.dead", 1)
    rest = [await amqp_client.take(name) for _ in range(9)]
    assert sorted(message.body for message in rest) == [f'{{"number":{n}}}'.encode() for n in range(1, 10)]


async def test_a_handler_that_outlives_the_grace_period_is_cancelled_and_requeued(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    class Ping(Command, queue=name):
        pass

    app = make_app(grace=0.1)
    started, cancelled = asyncio.Event(), asyncio.Event()

    @app.handle(Ping)
    async def ping(message: Ping) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async with app:
        await app.publish(Ping())
        await started.wait()
    assert cancelled.is_set()
    assert (await amqp_client.take(name)).redelivered
    await amqp_client.holds(f"{name}.dead", 0)


async def test_a_handler_that_cancels_itself_has_failed(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    app = make_app()

    @app.handle(bytes, queue=name)
    async def give_up(body: bytes) -> None:
        raise asyncio.CancelledError

    async with app:
        await app.publish(b"1", key=name)
        dead = await amqp_client.take(f"{name}.dead")
        assert dead.headers["warren-dead-reason"] == "failed"
        assert app.ready


async def test_a_handler_that_catches_its_cancellation_and_returns_does_not_keep_the_app_from_stopping(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    app = make_app(grace=0.1)
    started = asyncio.Event()

    @app.handle(bytes, queue=name)
    async def carry_on(body: bytes) -> None:
        started.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

    await app.start()
    await app.publish(b"1", key=name)
    await started.wait()
    async with asyncio.timeout(60):
        await app.stop()
    await amqp_client.holds(name, 0)


async def test_no_exception_of_a_handler_costs_its_queue_a_worker(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    app = make_app()

    @app.handle(bytes, queue=name, concurrency=1)
    async def take(body: bytes) -> None:
        if body == b"1":
            raise BaseExceptionGroup("both", [asyncio.CancelledError(), ValueError()])

    async with app:
        await app.publish_many([b"1", b"2"], key=name)
        assert (await amqp_client.take(f"{name}.dead")).body == b"1"
        await eventually(
            lambda: app.statistics().subscriptions[name].acknowledged == 2, "the next is handled"
        )


class Unexpected(BaseException):
    """An exception that is neither an Exception nor a cancellation."""


@pytest.mark.parametrize("how", ["raise", "cancel", "cancel and return"])
async def test_the_next_message_is_handled_whatever_a_handler_does_to_its_task(
    make_app: MakeApp, amqp_client: AsyncClient, name: str, how: str
) -> None:
    app = make_app()
    seen: list[bytes] = []

    @app.handle(bytes, queue=name, concurrency=1, prefetch=2)
    async def take(body: bytes) -> None:
        seen.append(body)
        if body == b"2":
            await asyncio.sleep(0)
            return
        if how == "raise":
            raise Unexpected
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        if how == "cancel":
            await asyncio.sleep(0)

    async with app:
        await app.publish_many([b"1", b"2", b"2"], key=name)
        if how != "cancel and return":
            assert (await amqp_client.take(f"{name}.dead")).headers["warren-dead-reason"] == "failed"
        statistics = app.subscriptions[name].statistics
        await eventually(lambda: statistics.acknowledged == 3, "the next are handled")
    assert seen == [b"1", b"2", b"2"]


def test_an_event_loop_that_ends_does_not_wait_for_workers(amqp_url: str, name: str) -> None:
    app = App(amqp_url)
    ended: list[str] = []

    @app.handle(bytes, queue=Queue(name, type="classic", durable=False, auto_delete=True))
    async def take(body: bytes) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")

    async def leave() -> None:
        await app.start()
        await app.publish(b"1", key=name)
        await eventually(lambda: app.statistics().subscriptions[name].running == 1, "it runs")

    asyncio.run(leave())
    assert ended == ["cancelled"]
