"""Consuming under lost connections: no message is lost or left over, and keyed order holds."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from functools import partial

from tests.sdk.conftest import MakeApp
from tests.support.async_client import AsyncClient
from tests.support.polling import eventually
from tests.support.proxy import Proxy
from warren.sdk import App, CircuitBreaker, Command, Queue, Retry
from warren.sdk.topology.queue import UNLIMITED_DELIVERIES

MESSAGES = 120
KEYS = 6
CUTS = 6


async def test_order_by_key_and_batches_survive_lost_connections(
    make_app: MakeApp, proxy: Proxy, amqp_client: AsyncClient, name: str
) -> None:
    class Step(Command, queue=Queue(f"{name}.steps", delivery_limit=None)):
        key: int
        number: int

    class Row(Command, queue=Queue(f"{name}.rows", delivery_limit=None)):
        number: int

    app, publisher = make_app(proxy.url), make_app()
    first: dict[int, list[int]] = defaultdict(list)
    running: set[int] = set()
    stored: set[int] = set()

    @app.handle(Step, concurrency=4, prefetch=30, ordered_by=lambda step: step.key)
    async def step(message: Step) -> None:
        assert message.key not in running, "one message of a key at a time"
        running.add(message.key)
        await asyncio.sleep(0.002)
        running.discard(message.key)
        if message.number not in first[message.key]:
            first[message.key].append(message.number)

    @app.handle.batch(Row, size=8, within="5ms")
    async def store(rows: list[Row]) -> None:
        await asyncio.sleep(0.002)
        stored.update(row.number for row in rows)

    def moved(so_far: int) -> bool:
        delivered = app.statistics().subscriptions[f"{name}.steps"].delivered
        return delivered > so_far or sum(map(len, first.values())) == MESSAGES

    def back(cut: int) -> bool:
        return app.statistics().reconnects >= 2 * (cut + 1) and app.ready

    async with publisher, app:
        await publisher.publish_many(Step(key=n % KEYS, number=n) for n in range(MESSAGES))
        await publisher.publish_many(Row(number=n) for n in range(MESSAGES))
        for cut in range(CUTS):
            so_far = app.statistics().subscriptions[f"{name}.steps"].delivered
            await eventually(partial(moved, so_far), "something is delivered again")
            # Its order is kept if the broker has what was not acknowledged when the next consumer comes.
            proxy.refuse()
            proxy.cut()
            for queue in (f"{name}.steps", f"{name}.rows"):
                await amqp_client.has_consumers(queue, 0)
            proxy.accept()
            await eventually(partial(back, cut), "it is back")
        await eventually(lambda: sum(map(len, first.values())) == MESSAGES, "every step is handled")
        await eventually(lambda: len(stored) == MESSAGES, "every row is stored")
        # What was handled, but not acknowledged in time, comes again once the broker knows that its connection is lost.
        for queue in (f"{name}.steps", f"{name}.rows"):
            await amqp_client.has_consumers(queue, 1)
        # Behind it comes what is published now.
        await publisher.publish(Step(key=KEYS, number=MESSAGES))
        await publisher.publish(Row(number=MESSAGES))
        await eventually(
            lambda: first[KEYS] == [MESSAGES] and MESSAGES in stored, "the last ones are handled"
        )
        for queue in (f"{name}.steps", f"{name}.rows"):
            await eventually(partial(_resting, app, queue), "nothing is left to do")
    for queue in (f"{name}.steps", f"{name}.rows", f"{name}.steps.dead", f"{name}.rows.dead"):
        await amqp_client.holds(queue, 0)
    for key in range(KEYS):
        assert first[key] == list(range(key, MESSAGES, KEYS)), "first handled in their order"


async def test_an_open_circuit_outlives_its_connection(
    make_app: MakeApp, proxy: Proxy, amqp_client: AsyncClient, name: str
) -> None:
    app = make_app(proxy.url, retry=Retry(1))
    broken = True
    seen: list[bytes] = []

    # However often it is tried until both connections are back.
    queue = Queue(name, delivery_limit=UNLIMITED_DELIVERIES)

    @app.handle(bytes, queue=queue, breaker=CircuitBreaker(failures=1, pause="300ms"))
    async def take(body: bytes) -> None:
        if broken:
            raise ConnectionError
        seen.append(body)

    async with app:
        await app.publish(b"1", key=name)
        await eventually(lambda: app.subscriptions[name].statistics.tripped > 0, "it is open")
        proxy.cut()
        await eventually(lambda: app.statistics().reconnects >= 2 and app.ready, "the connections are back")
        broken = False
        await eventually(lambda: seen == [b"1"], "it is tried, and handled")
        await eventually(lambda: app.subscriptions[name].active, "it consumes")
    await amqp_client.holds(f"{name}.dead", 0)


def _resting(app: App, queue: str) -> bool:
    statistics = app.statistics().subscriptions[queue]
    return statistics.running == statistics.waiting == 0
