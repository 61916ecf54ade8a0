"""Deliveries whose connection is lost while they are handled: one effect, one dead letter and one reply in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.sdk.conftest import MakeApp
from tests.support.async_client import AsyncClient
from tests.support.cut import Cut
from tests.support.polling import eventually
from tests.support.proxy import Proxy
from warren.sdk import App, Command, Delivery, Request, Retry
from warren.sdk.clock import SystemClock
from warren.sdk.protocols import Timer


async def redelivered(app: App, queue: str, count: int = 1) -> None:
    """Wait until the broker has delivered `count` messages again."""
    statistics = app.statistics
    await eventually(
        lambda: statistics().subscriptions[queue].redelivered >= count, "the messages are delivered again"
    )


async def settled(app: App, queue: str, count: int = 1) -> None:
    await eventually(
        lambda: app.statistics().subscriptions[queue].acknowledged >= count, "the messages are acknowledged"
    )


@pytest.mark.parametrize("ends", ["without a connection", "after the message came again"])
async def test_a_handler_that_outlives_its_connection_is_not_run_again(
    make_app: MakeApp, proxy: Proxy, amqp_client: AsyncClient, name: str, ends: str
) -> None:
    """The delivery that comes again is settled with the result of the handler."""
    app = make_app(proxy.url)
    runs: list[str] = []
    go_on = asyncio.Event()

    @app.handle(bytes, queue=name)
    async def handle(body: bytes, delivery: Delivery) -> None:
        runs.append("began")
        await go_on.wait()
        runs.append(f"lost: {delivery.lost}")

    async with app:
        await app.publish(b"1", key=name)
        await eventually(lambda: runs == ["began"], "it runs")
        cut = Cut(app, proxy)
        await cut.lose()
        if ends == "without a connection":
            go_on.set()
            await eventually(lambda: app.statistics().subscriptions[name].stale == 1, "it is handled")
        await cut.restore()
        await redelivered(app, name)
        go_on.set()
        await settled(app, name)
        assert app.statistics().subscriptions[name].stale == (ends == "without a connection")
    assert runs == ["began", "lost: True"]
    await amqp_client.holds(name, 0)


async def test_equal_messages_are_each_handled_once(
    make_app: MakeApp, proxy: Proxy, amqp_client: AsyncClient, name: str
) -> None:
    """Two copies with one message id, as a publisher sends them whose confirm was lost."""
    app = make_app(proxy.url)
    runs = 0
    go_on = asyncio.Event()

    @app.handle(bytes, queue=name, concurrency=2)
    async def handle(body: bytes) -> None:
        nonlocal runs
        runs += 1
        await go_on.wait()

    async with app:
        for _ in range(2):
            await app.publish(b"1", key=name, message_id="one")
        await eventually(lambda: runs == 2, "both run")
        await Cut(app, proxy)()
        await redelivered(app, name, 2)
        go_on.set()
        await settled(app, name, 2)
    assert runs == 2
    await amqp_client.holds(name, 0)


async def test_a_message_with_another_content_under_the_same_id_is_handled(
    make_app: MakeApp, proxy: Proxy, amqp_client: AsyncClient, name: str
) -> None:
    app = make_app(proxy.url)
    runs: list[tuple[bytes, Any]] = []
    go_on = asyncio.Event()

    @app.handle(bytes, queue=name, concurrency=1)
    async def handle(body: bytes, delivery: Delivery) -> None:
        runs.append((body, delivery.headers.get("n")))
        await go_on.wait()

    async with app:
        await app.publish(b"1", key=name, message_id="one", headers={"n": 1})
        await app.publish(b"1", key=name, message_id="one", headers={"n": 2})
        await app.publish(b"2", key=name, message_id="one", headers={"n": 1})
        await eventually(lambda: len(runs) == 1, "the first runs")
        cut = Cut(app, proxy)
        await cut.lose()
        go_on.set()
        await cut.restore()
        await eventually(lambda: len(runs) == 3, "the others are handled")
        await settled(app, name, 3)
    assert runs == [(b"1", 1), (b"1", 2), (b"2", 1)]
    await amqp_client.holds(name, 0)


@pytest.mark.parametrize("fails", ["without a connection", "after the message came again"])
@pytest.mark.parametrize(
    "retry", [Retry(1), Retry(2), Retry(1).then("10ms")], ids=["none", "twice", "delayed"]
)
async def test_a_failure_after_the_loss_publishes_nothing_and_is_not_final(
    make_app: MakeApp, proxy: Proxy, amqp_client: AsyncClient, name: str, retry: Retry, fails: str
) -> None:
    """The handler may have failed because its database was lost together with the connection."""
    app = make_app(proxy.url, retry=retry)
    runs = 0
    go_on = asyncio.Event()

    @app.handle(bytes, queue=name)
    async def handle(body: bytes) -> None:
        nonlocal runs
        runs += 1
        if runs == 1:
            await go_on.wait()
            raise ValueError("the database is gone, too")

    async with app:
        await app.publish(b"1", key=name)
        await eventually(lambda: runs == 1, "it runs")
        cut = Cut(app, proxy)
        await cut.lose()
        if fails == "without a connection":
            go_on.set()
            await eventually(lambda: app.statistics().subscriptions[name].stale == 1, "the failure is stale")
        await cut.restore()
        await redelivered(app, name)
        go_on.set()
        await settled(app, name)
        handled = app.statistics().handlers[name]
        assert (runs, handled.handled, handled.dead_lettered, handled.delayed) == (2, 1, 0, 0)
    await amqp_client.holds(f"{name}.dead", 0)


async def test_an_incomplete_batch_has_each_message_once(
    make_app: MakeApp, proxy: Proxy, amqp_client: AsyncClient, name: str
) -> None:
    class Row(Command, queue=name):
        number: int

    app = make_app(proxy.url)
    batches: list[list[int]] = []

    @app.handle.batch(Row, size=4, within="1h")
    async def store(rows: list[Row]) -> None:
        batches.append([row.number for row in rows])

    async with app:
        for number in range(3):
            await app.publish(Row(number=number))
        await eventually(
            lambda: app.statistics().handlers[name].gathering == 3, "the batch has three messages"
        )
        await Cut(app, proxy)()
        await redelivered(app, name, 3)
        await app.publish(Row(number=3))
        await settled(app, name, 4)
    assert batches == [[0, 1, 2, 3]]
    await amqp_client.holds(name, 0)


class HeldClock(SystemClock):
    """The clock of the machine, on which nothing is due by itself."""

    def __init__(self) -> None:
        self.due: list[Callable[[], object]] = []

    def call_at(self, when: float, callback: Callable[[], object]) -> Timer:
        self.due.append(callback)
        return super().call_at(when, lambda: None)


async def test_a_batch_that_is_due_without_a_connection_is_not_handled(
    make_app: MakeApp, proxy: Proxy, amqp_client: AsyncClient, name: str
) -> None:
    app, clock = make_app(proxy.url), HeldClock()
    app.clock.follow(clock)
    batches: list[list[bytes]] = []

    @app.handle.batch(bytes, queue=name, size=2, within="1h")
    async def store(rows: list[bytes]) -> None:
        batches.append(rows)

    async with app:
        cut = Cut(app, proxy)
        await app.publish(b"1", key=name)
        gathering = app.statistics
        await eventually(lambda: gathering().handlers[name].gathering == 1, "a batch is incomplete")
        await cut.lose()
        for callback in clock.due:
            callback()
        await eventually(lambda: app.statistics().subscriptions[name].stale == 1, "the message is left out")
        assert batches == []
        await cut.restore()
        await redelivered(app, name)
        await app.publish(b"2", key=name)
        await settled(app, name, 2)
    assert batches == [[b"1", b"2"]]
    await amqp_client.holds(name, 0)


async def test_a_request_is_answered_once(make_app: MakeApp, proxy: Proxy, name: str) -> None:
    class Ask(Request[int], queue=name):
        pass

    server, client = make_app(proxy.url), make_app()
    runs = 0
    go_on = asyncio.Event()

    @server.handle(Ask)
    async def ask(request: Ask) -> int:
        nonlocal runs
        runs += 1
        await go_on.wait()
        return runs

    async with server, client:
        call = asyncio.create_task(client.call(Ask(), timeout=120))
        await eventually(lambda: runs == 1, "it runs")
        await Cut(server, proxy)()
        await redelivered(server, name)
        go_on.set()
        assert await call == 1
        await settled(server, name)
        assert client.statistics().calls.discarded_replies == 0


async def test_messages_of_one_key_keep_their_order_over_a_lost_connection(
    make_app: MakeApp, proxy: Proxy, amqp_client: AsyncClient, name: str
) -> None:
    app = make_app(proxy.url)
    log: list[str] = []
    go_on = asyncio.Event()

    @app.handle(bytes, queue=name, ordered_by="tenant", concurrency=5)
    async def handle(body: bytes) -> None:
        log.append(f"begin {body.decode()}")
        await go_on.wait()
        log.append(f"end {body.decode()}")

    async with app:
        for number in range(3):
            await app.publish(str(number).encode(), key=name, headers={"tenant": "a"})
        await eventually(lambda: log == ["begin 0"], "the first runs")
        await eventually(lambda: app.statistics().subscriptions[name].delivered == 3, "the others wait")
        await Cut(app, proxy)()
        await redelivered(app, name, 3)
        go_on.set()
        await settled(app, name, 3)
    assert log == [f"{step} {number}" for number in range(3) for step in ("begin", "end")]
    await amqp_client.holds(name, 0)
