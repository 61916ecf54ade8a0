"""Run one App through one fault at one step of the protocol, and check its guarantees afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar
from uuid import uuid4

import pytest

from tests.support.async_client import async_client
from tests.support.polling import eventually
from tests.support.proxy import Proxy
from tests.support.proxy_faults import Fault, FrameTrigger
from warren.sdk import (
    App,
    CallTimeout,
    Command,
    Event,
    Queue,
    Request,
    Requeue,
    Retry,
    TransactionFailed,
    TransactionUnknown,
    TransportUnavailable,
    Unroutable,
)

Result = TypeVar("Result")
PARTS = ("calls", "kept", "dead")

TO_SERVER = (
    "protocol header",
    "connection.start-ok",
    "connection.tune-ok",
    "connection.open",
    "channel.open",
    "confirm.select",
    "queue.declare",
    "basic.qos",
    "basic.consume",
    "basic.publish",
    "header",
    "body",
    "basic.ack",
    "basic.cancel",
    "channel.close",
    "connection.close",
)
TO_CLIENT = (
    "connection.start",
    "connection.tune",
    "connection.open-ok",
    "channel.open-ok",
    "confirm.select-ok",
    "queue.declare-ok",
    "basic.qos-ok",
    "basic.consume-ok",
    "basic.ack",
    "basic.deliver",
    "header",
    "body",
    "basic.cancel-ok",
    "channel.close-ok",
    "connection.close-ok",
)
STEPS = [("to server", frame) for frame in TO_SERVER] + [("to client", frame) for frame in TO_CLIENT]
RARER_TO_SERVER = ("exchange.declare", "queue.bind", "basic.reject", "basic.get", "tx.select", "tx.commit")
RARER_TO_CLIENT = (
    "exchange.declare-ok",
    "queue.bind-ok",
    "basic.return",
    "basic.get-ok",
    "tx.select-ok",
    "tx.commit-ok",
)
RARER = [("to server", frame) for frame in RARER_TO_SERVER] + [
    ("to client", frame) for frame in RARER_TO_CLIENT
]
"""Faults that only a workload with calls, dead letters, returns, fetched messages and transactions meets."""
MESSAGES = 30
DEADLINE = 150.0


async def survive(url: str, direction: str, frame: str, fault: Fault, nth: int = 1) -> None:
    """Start, publish, handle and stop through the fault; of the rarer frames, with all that an App can do in between.

    :raises AssertionError: if what was confirmed is not handled, a delivery has no end, something was handled that nobody
        published, anything takes longer than its deadline, or something is left open.
    """
    name = f"f{uuid4().hex[:12]}"
    before = asyncio.all_tasks()
    try:
        async with Proxy(url) as proxy:
            lane = proxy.to_server if direction == "to server" else proxy.to_client
            with FrameTrigger(lane, frame, fault, nth=nth) as step:
                async with asyncio.timeout(DEADLINE):
                    live = _live_fully if (direction, frame) in RARER else _live
                    await live(App(proxy.url, longest_retry=0.05, grace=2, connect_timeout=60), name)
                assert step.hit, f"no {frame} {direction}"
                await eventually(lambda: proxy.connections == 0, "its connections are closed")
        await eventually(lambda: not asyncio.all_tasks() - before, "its tasks have ended")
    finally:
        async with async_client(url) as client:
            for queue in (name, *(f"{name}.{part}" for part in PARTS)):
                await client.channel.queue_delete(queue)
            await client.channel.exchange_delete(name)


async def _live(app: App, name: str) -> None:
    class Count(Command, queue=Queue(name, dead_letter_exchange=None)):
        number: int

    handled: set[int] = set()

    @app.handle(Count)
    async def count(message: Count) -> None:
        handled.add(message.number)

    async with app:
        messages = [Count(number=number) for number in range(MESSAGES)]
        await app.publish_many(messages, timeout=60)
        await eventually(lambda: handled == set(range(MESSAGES)), "all that is confirmed is handled")
        await eventually(lambda: _open(app, name) == 0, "every delivery has its end")


async def _live_fully(app: App, name: str) -> None:
    """Use a call, a dead letter, a requeue, a returned message, a fetched message and a transaction."""

    class Happened(Event, exchange=name, key="happened"):
        number: int

    class Double(Request[int], queue=Queue(f"{name}.calls", dead_letter_exchange=None)):
        number: int

    class Kept(Command, queue=Queue(f"{name}.kept", dead_letter_exchange=None)):
        number: int

    handled: set[int] = set()
    given_back: set[int] = set()

    @app.handle(Happened, queue=name, retry=Retry(1))
    async def happened(event: Happened) -> None:
        if event.number == 0:
            raise ValueError("poison")
        if event.number == 1 and event.number not in given_back:
            given_back.add(event.number)
            raise Requeue
        handled.add(event.number)

    @app.handle(Double)
    async def double(request: Double) -> int:
        return 2 * request.number

    app.publishes(Kept)
    async with app:
        await app.publish_many([Happened(number=number) for number in range(3)], timeout=60)
        await eventually(lambda: handled == {1, 2}, "all but the poison is handled")
        assert await _at_last(lambda: app.call(Double(number=21), timeout=5)) == 42
        with pytest.raises(Unroutable):
            await app.publish(b"lost", key=f"{name}.nowhere", timeout=60)
        await _at_last(lambda: _commit(app, Kept(number=1), Kept(number=2)))
        for queue, least in ((f"{name}.dead", 1), (f"{name}.kept", 2)):
            for _ in range(least):
                await _at_last(lambda queue=queue: _take(app, queue))  # type: ignore[misc]
        await eventually(lambda: _open(app, name) == 0, "every delivery has its end")
        await eventually(lambda: _open(app, f"{name}.calls") == 0, "every request has its end")


async def _commit(app: App, *messages: Command) -> None:
    async with app.transaction(timeout=5) as tx:
        for message in messages:
            await tx.publish(message)


async def _take(app: App, queue: str) -> None:
    message = await app.get(queue, timeout=60)
    assert message is not None, f"nothing came from {queue}"
    await message.ack()


async def _at_last(attempt: Callable[[], Awaitable[Result]]) -> Result:
    """Repeat `attempt` after errors of a lost connection, as a user would; other errors are raised."""
    while True:
        try:
            return await attempt()
        except (TransportUnavailable, TransactionFailed, TransactionUnknown, CallTimeout):
            await asyncio.sleep(0)


def _open(app: App, name: str) -> int:
    """Deliveries that are neither acknowledged nor given back, by us or by the end of their channel."""
    counts = app.statistics().subscriptions[name]
    return counts.delivered - counts.acknowledged - counts.requeued - counts.rejected - counts.stale
