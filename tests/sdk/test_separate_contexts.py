"""Context and task of each message: what one handler leaves behind does not reach another message."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar

from tests.sdk.conftest import MakeApp
from tests.support.async_client import AsyncClient
from tests.support.polling import eventually
from warren.sdk import Command, Retry, current_delivery

tenant: ContextVar[str | None] = ContextVar("tenant", default=None)


async def test_a_context_variable_that_a_handler_sets_ends_with_its_message(
    make_app: MakeApp, name: str
) -> None:
    seen: list[str | None] = []
    tasks: list[asyncio.Task[object] | None] = []
    app = make_app(retry=Retry(2, first_wait="1ms"))

    @app.handle(bytes, queue=name, concurrency=1)
    async def handle(body: bytes) -> None:
        seen.append(tenant.get())
        tasks.append(asyncio.current_task())
        tenant.set(body.decode())

    token = tenant.set("of the program")
    async with app:
        tenant.reset(token)
        for body in (b"1", b"2", b"3"):
            await app.publish(body, key=name)
        await eventually(lambda: len(seen) == 3, "the messages are handled")
    assert seen == ["of the program"] * 3
    assert len(set(tasks)) == 3


async def test_a_cancellation_that_comes_after_the_handler_strikes_no_other_message(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    app = make_app()
    first: list[asyncio.Task[object]] = []
    ended: list[bytes] = []
    cancelled = asyncio.Event()

    @app.handle(bytes, queue=name, concurrency=1)
    async def handle(body: bytes) -> None:
        if not first:
            task = asyncio.current_task()
            assert task is not None
            first.append(task)
            return
        await cancelled.wait()
        ended.append(body)

    async with app:
        await app.publish(b"1", key=name)
        await app.publish(b"2", key=name)
        await eventually(lambda: app.statistics().subscriptions[name].running == 1 and bool(first), "it runs")
        await eventually(lambda: first[0].done(), "the task of the first message has ended")
        first[0].cancel()
        cancelled.set()
        await eventually(lambda: ended == [b"2"], "the second message is handled")
    await amqp_client.holds(f"{name}.dead", 0)


async def test_a_batch_handler_runs_in_no_messages_context(make_app: MakeApp, name: str) -> None:
    class Row(Command, queue=name):
        number: int

    class Stored(Command, queue=f"{name}.stored"):
        number: int

    app = make_app()
    current: list[object] = []
    causes: list[str | None] = []

    @app.handle.batch(Row, size=2, within="1h")
    async def store(rows: list[Row]) -> None:
        current.append(current_delivery())
        for row in rows:
            await app.publish(Stored(number=row.number))

    @app.handle(Stored)
    async def stored(message: Stored) -> None:
        delivery = current_delivery()
        assert delivery is not None
        causes.append(delivery.cause)

    async with app:
        for number in range(2):
            await app.publish(Row(number=number))
        await eventually(lambda: len(causes) == 2, "both are stored")
    assert (current, causes) == ([None], [None, None])
