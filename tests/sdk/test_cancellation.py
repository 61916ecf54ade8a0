"""Cancellation at every await: it affects nothing but the cancelled operation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.sdk.conftest import MakeApp
from tests.support.async_client import AsyncClient
from tests.support.cancellation import cancellations
from tests.support.polling import eventually
from tests.support.proxy import Proxy
from warren.sdk import App, Command, Delivery, Queue, Request, WarrenError

Operation = Callable[[App, str], Coroutine[Any, Any, object]]
FEW = (0, 1, 3, 8, 21, 55)


async def publish(app: App, name: str) -> None:
    await app.publish(b"1", key=name)


async def publish_of_a_new_class(app: App, name: str) -> None:
    class Fresh(Command, queue=f"{name}.fresh"):
        pass

    await app.publish(Fresh())


async def submit(app: App, name: str) -> None:
    await (await app.submit(b"1", key=name))


async def publish_many(app: App, name: str) -> object:
    return await app.publish_many([b"1"] * 25, key=name)


async def publish_in_order(app: App, name: str) -> object:
    return await app.publish_many([b"1"] * 25, key=name, ordered=True, attempts=2)


async def publish_batches(app: App, name: str) -> object:
    return [report async for report in app.publish_batches([b"1"] * 5, count=2, key=name)]


async def transaction(app: App, name: str) -> None:
    async with app.transaction() as tx:
        await tx.publish(b"1", key=name)
        await tx.get(f"{name}.empty")


async def call(app: App, name: str) -> object:
    class Double(Request[int], queue=f"{name}.double"):
        number: int

    return await app.call(Double(number=2), timeout=60)


async def gather(app: App, name: str) -> object:
    class Double(Request[int], queue=f"{name}.double"):
        number: int

    return await app.gather(Double(number=2), replies=1, timeout=60)


async def forward(app: App, name: str) -> None:
    await app.forward(Delivery(b"1", "", name, name, False, {}, {"message_id": "same"}), key=name)


async def declare_now(app: App, name: str) -> None:
    await app.declare_now(Queue(f"{name}.now"))


@pytest.mark.parametrize(
    "operation",
    [
        publish,
        publish_of_a_new_class,
        submit,
        publish_many,
        publish_in_order,
        publish_batches,
        transaction,
        call,
        gather,
        forward,
        declare_now,
    ],
)
async def test_a_cancellation_affects_nothing_else(
    make_app: MakeApp, name: str, operation: Operation
) -> None:
    class Double(Request[int], queue=f"{name}.double"):
        number: int

    app = make_app(window=10)
    app.declare(Queue(f"{name}.empty"))
    handled: list[bytes] = []

    @app.handle(bytes, queue=name)
    async def take(body: bytes) -> None:
        handled.append(body)

    @app.handle(Double)
    async def double(request: Double) -> int:
        return 2 * request.number

    async with app:
        places = set()
        async for suspension, turns, outcome in cancellations(lambda: operation(app, name), FEW):
            places.add(suspension)
            assert outcome is None or isinstance(outcome, asyncio.CancelledError), (
                suspension,
                turns,
                outcome,
            )
        assert places
        await app.publish_many([b"last"] * 25, key=name)
        assert await app.call(Double(number=2), timeout=60) == 4
        await app.declare_now(Queue(f"{name}.after"))
        async with app.transaction() as tx:
            await tx.publish(b"committed", key=name)
        await eventually(lambda: handled.count(b"last") == 25 and b"committed" in handled, "all is handled")
        assert (app.statistics().reconnects, app.ready) == (0, True)
        await eventually(
            lambda: app.statistics().publisher.unconfirmed == 0, "all that was cancelled is confirmed"
        )


async def test_a_cancelled_start_leaves_nothing_and_another_one_works(
    make_app: MakeApp, proxy: Proxy, name: str
) -> None:
    app = make_app(proxy.url)
    app.declare(Queue(name))
    handled: list[bytes] = []

    @app.handle(bytes, queue=name)
    async def take(body: bytes) -> None:
        handled.append(body)

    before = len(asyncio.all_tasks())

    async def start() -> None:
        await app.start()
        await app.stop()

    cancelled = 0
    async for suspension, turns, outcome in cancellations(start, (0, 3, 21, 144)):
        cancelled += isinstance(outcome, asyncio.CancelledError)
        assert outcome is None or isinstance(outcome, asyncio.CancelledError), (suspension, turns, outcome)
        if app.state.value != "closed":
            # It was cancelled between the start and the stop of this test.
            await app.stop()
        await eventually(lambda: proxy.connections == 0, "its connections are closed")
    assert cancelled > 5
    async with app:
        await app.publish(b"1", key=name)
        await eventually(lambda: handled == [b"1"], "it works")
    await eventually(lambda: len(asyncio.all_tasks()) <= before + 1, "no task is left")


async def test_a_cancelled_stop_has_stopped(
    make_app: MakeApp, proxy: Proxy, amqp_client: AsyncClient, name: str
) -> None:
    app = make_app(proxy.url, grace=0.2)
    started: asyncio.Queue[None] = asyncio.Queue()

    @app.handle(bytes, queue=name)
    async def take(body: bytes) -> None:
        started.put_nowait(None)
        await asyncio.Event().wait()

    async def stop() -> None:
        await app.start()
        async with asyncio.timeout(60):
            await started.get()
        await app.stop()

    async with make_app() as other:
        other.declare(Queue(name))
        await other.declare_now(Queue(name))
        await other.publish(b"1", key=name)
    before = len(asyncio.all_tasks())
    async for suspension, turns, outcome in cancellations(stop, (0, 21)):
        assert outcome is None or isinstance(outcome, asyncio.CancelledError), (suspension, turns, outcome)
        if app.state.value != "closed":
            await app._lifecycle.stop() if suspension % 2 else await app.stop()
        while not started.empty():
            started.get_nowait()
        await eventually(lambda: proxy.connections == 0, "its connections are closed")
    assert (await amqp_client.take(name)).body == b"1", (
        "the message that was being handled came back each time"
    )
    await eventually(lambda: len(asyncio.all_tasks()) <= before, "no task is left")


async def test_a_cancelled_block_of_a_transaction_is_rolled_back(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    app = make_app()
    app.declare(Queue(name), Queue(f"{name}.from"))
    async with app:
        await app.publish(b"moved", key=f"{name}.from")

        async def move() -> None:
            async with app.transaction() as tx:
                delivery = await tx.get(f"{name}.from")
                await tx.publish(b"" if delivery is None else delivery.body, key=name)
                await asyncio.sleep(0.01)
                raise ZeroDivisionError

        async for suspension, turns, outcome in cancellations(move, FEW):
            assert isinstance(outcome, asyncio.CancelledError | ZeroDivisionError), (
                suspension,
                turns,
                outcome,
            )
        # What it took comes back when its channel is closed; nothing else takes it meanwhile.
        await amqp_client.holds(f"{name}.from", 1)
        await amqp_client.holds(name, 0)
        assert app.statistics().reconnects == 0


async def test_a_cancelled_publish_that_waits_for_room_wakes_the_next(
    make_app: MakeApp, proxy: Proxy, name: str
) -> None:
    app = make_app(proxy.url, window=1)
    app.declare(Queue(name))
    async with app:
        for turns in range(6):
            tasks = [asyncio.create_task(app.publish(b"1", key=name, timeout=60)) for _ in range(6)]
            for _ in range(turns):
                await asyncio.sleep(0)
            tasks[1].cancel()
            tasks[3].cancel()
            results = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 60)
            assert not [result for result in results if isinstance(result, WarrenError)]
