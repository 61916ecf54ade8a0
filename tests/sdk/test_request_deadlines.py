"""Deadlines of requests: no handler runs for a caller that has stopped waiting, on whatever way the request comes."""

from __future__ import annotations

import asyncio
import time
from datetime import datetime
from typing import Any

import pytest

from tests.sdk.conftest import MakeApp
from tests.support.async_client import AsyncClient
from tests.support.polling import eventually
from warren.patterns import Delay
from warren.patterns.dead_letters import ParkingLot, replay
from warren.sdk import App, Delivery, RemoteError, Request, Retry, RetryLater
from warren.sdk.consume import attempts
from warren.sdk.consume import delivery as delivery_module

TIMEOUT = 100.0


class ServerClock:
    """The clock by which the server knows deadlines, which a test sets forward; the caller's clock stays as it is."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead


@pytest.fixture
def server_clock(monkeypatch: pytest.MonkeyPatch) -> ServerClock:
    clock = ServerClock()
    monkeypatch.setattr(delivery_module, "time", clock)
    monkeypatch.setattr(attempts, "time", clock)
    return clock


async def call_until_expired(app: App, request: Request[int], client: AsyncClient, queue: str) -> Any:
    """Call, and return the dead letter of the request."""
    calling = asyncio.ensure_future(app.call(request, timeout=TIMEOUT))
    dead = await client.take(queue)
    calling.cancel()
    return dead


@pytest.mark.parametrize("how", ["policy", "RetryLater", "RetryLater at once", "Delay", "forward"])
@pytest.mark.parametrize("late", [False, True], ids=["in time", "late"])
async def test_a_copy_of_a_request_keeps_the_deadline(
    make_app: MakeApp, amqp_client: AsyncClient, server_clock: ServerClock, name: str, how: str, late: bool
) -> None:
    class Ask(Request[int], queue=name):
        pass

    app = make_app(grace=0, delay=Delay(name) if how == "Delay" else None)
    deadlines: list[datetime | None] = []

    @app.handle(Ask, retry=Retry(1).then("1ms"))
    async def ask(request: Ask, delivery: Delivery) -> int:
        deadlines.append(delivery.deadline)
        if len(deadlines) == 2:
            return 7
        server_clock.ahead += TIMEOUT + 1 if late else TIMEOUT / 2
        match how:
            case "RetryLater":
                raise RetryLater("1ms")
            case "RetryLater at once":
                raise RetryLater(0)
            case "forward":
                await app.forward(delivery, key=name)
                await asyncio.Event().wait()
        raise ValueError("busy")

    app.publishes(Ask)
    async with app:
        if late:
            dead = await call_until_expired(app, Ask(), amqp_client, f"{name}.dead")
            assert dead.headers["warren-dead-reason"] == "expired"
            assert "warren-deadline" not in dead.headers
            assert len(deadlines) == 1
        else:
            assert await app.call(Ask(), timeout=TIMEOUT) == 7
            first, second = deadlines
            assert first is not None
            assert second is not None
            # A header has milliseconds.
            assert abs((first - second).total_seconds()) <= 0.001


async def test_a_request_that_waits_for_a_free_handler_keeps_the_deadline(
    make_app: MakeApp, amqp_client: AsyncClient, server_clock: ServerClock, name: str
) -> None:
    class Ask(Request[int], queue=name):
        n: int

    app = make_app()
    handled: list[int] = []
    started, release = asyncio.Event(), asyncio.Event()

    @app.handle(Ask, concurrency=1, prefetch=2)
    async def ask(request: Ask) -> int:
        handled.append(request.n)
        started.set()
        await release.wait()
        return request.n

    async with app:
        first = asyncio.ensure_future(app.call(Ask(n=1), timeout=TIMEOUT))
        await started.wait()
        second = asyncio.ensure_future(app.call(Ask(n=2), timeout=TIMEOUT))
        subscription = app.subscriptions[name]
        await eventually(
            lambda: subscription.snapshot().waiting == 1, "the second request waits for the handler"
        )
        server_clock.ahead += TIMEOUT + 1
        release.set()
        assert await first == 1
        dead = await amqp_client.take(f"{name}.dead")
        second.cancel()
    assert handled == [1]
    assert dead.headers["warren-dead-reason"] == "expired"


async def test_no_attempt_in_the_process_begins_after_the_deadline(
    make_app: MakeApp, server_clock: ServerClock, name: str
) -> None:
    class Ask(Request[int], queue=name):
        pass

    app = make_app()
    runs: list[int] = []

    @app.handle(Ask, retry=Retry(10, first_wait="1ms"))
    async def ask(request: Ask) -> int:
        runs.append(1)
        if len(runs) == 2:
            server_clock.ahead += TIMEOUT + 1
        raise ValueError("busy")

    async with app:
        with pytest.raises(RemoteError, match="ValueError: busy"):
            await app.call(Ask(), timeout=TIMEOUT)
    assert len(runs) == 2


async def test_a_replayed_request_is_handled_without_a_deadline(
    make_app: MakeApp, amqp_url: str, server_clock: ServerClock, name: str
) -> None:
    class Ask(Request[int], queue=name):
        pass

    app = make_app()
    runs: list[datetime | None] = []
    replayed = asyncio.Event()

    @app.handle(Ask)
    async def ask(request: Ask, delivery: Delivery) -> int:
        runs.append(delivery.deadline)
        if len(runs) == 2:
            replayed.set()
            return 1
        server_clock.ahead += TIMEOUT + 1
        raise RetryLater("1ms")

    async with app:
        calling = asyncio.ensure_future(app.call(Ask(), timeout=TIMEOUT))
        letter = await app.get(f"{name}.dead", timeout=60)
        assert letter is not None
        await letter.requeue()
        async with ParkingLot(amqp_url, f"{name}.dead") as lot:
            result = await replay(lot, app)
        assert result.done == 1
        await replayed.wait()
        calling.cancel()
    assert runs[0] is not None
    assert runs[1] is None


async def test_messages_that_are_no_requests_have_no_deadline(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    app = make_app()
    seen: list[datetime | None] = []
    handled = asyncio.Event()

    @app.handle(bytes, queue=name)
    async def take(body: bytes, delivery: Delivery) -> None:
        seen.append(delivery.deadline)
        handled.set()

    async with app:
        await app.publish(b"1", key=name, expiration="100s")
        await handled.wait()
    assert seen == [None]
