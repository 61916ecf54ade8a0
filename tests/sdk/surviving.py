"""One App through one fault at one step of the protocol, and what must hold afterwards."""

from __future__ import annotations

import asyncio
from uuid import uuid4

from tests.sdk.foreign import foreign_client
from tests.sdk.waiting import until
from tests.support.proxy import Proxy
from tests.support.steps import Fault, Step
from warren.sdk import App, Command, Queue

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
MESSAGES = 30
DEADLINE = 30.0


async def survive(url: str, direction: str, frame: str, fault: Fault, nth: int = 1) -> None:
    """Start, publish, handle and stop through the fault.

    :raises AssertionError: if what was confirmed is not handled, a delivery has no end, something was handled that nobody
        published, anything takes longer than its deadline, or something is left open.
    """
    name = f"f{uuid4().hex[:12]}"
    before = asyncio.all_tasks()
    try:
        async with Proxy(url) as proxy:
            lane = proxy.to_server if direction == "to server" else proxy.to_client
            with Step(lane, frame, fault, nth=nth) as step:
                async with asyncio.timeout(DEADLINE):
                    await _live(App(proxy.url, longest_retry=0.05, grace=2), name)
                assert step.hit, f"no {frame} {direction}"
                await until(lambda: proxy.connections == 0, "its connections are closed")
        await until(lambda: not asyncio.all_tasks() - before, "its tasks have ended")
    finally:
        async with foreign_client(url) as client:
            await client.channel.queue_delete(name)


async def _live(app: App, name: str) -> None:
    class Count(Command, queue=Queue(name, dead_letter_exchange=None)):
        number: int

    handled: set[int] = set()

    @app.handle(Count)
    async def count(message: Count) -> None:
        handled.add(message.number)

    async with app:
        messages = [Count(number=number) for number in range(MESSAGES)]
        await app.publish_many(messages, timeout=15)
        await until(lambda: handled == set(range(MESSAGES)), "all that is confirmed is handled")
        await until(lambda: _open(app, name) == 0, "every delivery has its end")


def _open(app: App, name: str) -> int:
    """Deliveries that are neither acknowledged nor given back, by us or by the end of their channel."""
    counts = app.statistics().subscriptions[name]
    return counts.delivered - counts.acknowledged - counts.requeued - counts.rejected - counts.stale
