"""Handlers that are added to a running App, and removed from it."""

from __future__ import annotations

import asyncio

import pytest

from tests.sdk.conftest import MakeApp
from tests.support.async_client import AsyncClient
from tests.support.polling import eventually
from tests.support.proxy import Proxy
from warren.patterns import Delay
from warren.sdk import (
    App,
    Binding,
    ConfigError,
    Event,
    Exchange,
    Queue,
    Request,
    Router,
    State,
    TopologyMismatch,
    TransportUnavailable,
)


def numbers_router(queue: str, seen: list[int]) -> Router:
    router = Router()

    @router.handle(int, queue=queue)
    async def numbers(message: int) -> None:
        seen.append(message)

    return router


async def test_an_added_handler_consumes_until_it_is_removed_also_after_reconnects(
    make_app: MakeApp, proxy: Proxy, amqp_client: AsyncClient, name: str
) -> None:
    class Placed(Event, exchange=f"{name}.x", key="placed"):
        number: int

    class Double(Request[int], queue=f"{name}.double"):
        number: int

    router = Router(prefix=f"{name}.")
    started, finish = asyncio.Event(), asyncio.Event()
    seen: list[int] = []
    kept: list[int] = []

    @router.handle(Placed, queue="placed", concurrency=1)
    async def placed(message: Placed) -> None:
        if message.number == 2:
            started.set()
            await finish.wait()
        seen.append(message.number)

    @router.handle(Double)
    async def double(message: Double) -> int:
        return 2 * message.number

    @router.handle(int, queue="spare")
    async def spare(message: int) -> None: ...

    app = make_app(proxy.url)
    app.publishes(Placed, Double)

    @app.handle(Placed, queue=f"{name}.kept")
    async def keep(message: Placed) -> None:
        kept.append(message.number)

    async def reconnect() -> None:
        proxy.cut()
        await eventually(lambda: not app.ready, "the loss is noticed")
        await eventually(lambda: app.ready, "the App is connected again")

    async with app:
        before = app.topology
        running = await app.include_now(router)
        assert app.ready
        assert set(running.subscriptions) == {f"{name}.placed", f"{name}.double", f"{name}.spare"}
        assert await app.call(Double(number=21)) == 42
        await app.publish(Placed(number=0))
        await eventually(lambda: seen == [0], "the added handler got the message")
        await reconnect()
        await app.publish(Placed(number=1))
        await eventually(lambda: set(seen) == {0, 1}, "it consumes again after a reconnect")

        for number in (2, 3):
            await app.publish(Placed(number=number))
        await started.wait()
        removing = asyncio.create_task(running.remove())
        await eventually(lambda: not running.subscriptions, "the removal has begun")
        assert app.ready
        assert not removing.done()
        finish.set()
        await removing
        assert set(seen) == {0, 1, 2}
        await amqp_client.has_consumers(f"{name}.placed", 0)
        await app.publish(Placed(number=4))
        await reconnect()
        await eventually(lambda: set(kept) == set(range(5)), "the App's own handlers consume as before")
        await amqp_client.has_consumers(f"{name}.placed", 0)
        await amqp_client.holds(f"{name}.placed", 2)
        assert app.topology == before
        # A deleted queue does not come back.
        await amqp_client.channel.queue_delete(f"{name}.spare")
        await reconnect()
        with pytest.raises(TopologyMismatch):
            await app.get(f"{name}.spare")

        # The same router again takes what waits.
        running = await app.include_now(router)
        await eventually(lambda: set(seen) == set(range(5)), "the messages that waited are handled")
        await running.remove()
        await running.remove()
    for queue in (f"{name}.placed", f"{name}.placed.dead", f"{name}.spare", f"{name}.spare.dead"):
        await amqp_client.channel.queue_delete(queue)


async def test_added_handlers_belong_to_the_run(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    seen: list[int] = []
    router = numbers_router(name, seen)
    app = make_app()
    async with app:
        running = await app.include_now(router)
        await app.publish(1, key=name)
        await eventually(lambda: seen == [1], "it is handled")
        with pytest.raises(ConfigError, match=r"^the router is included in this App already"):
            await app.include_now(router)
        with pytest.raises(ConfigError, match="the App runs already: add a handler before it starts"):
            router.handle(str, queue="late")
        assert app.statistics().handlers[name].handled == 1
    await running.remove()
    async with app:
        await app.publish(2, key=name)
        await amqp_client.has_consumers(name, 0)
        assert app.topology == ()
        await app.include_now(router)
        await eventually(lambda: seen == [1, 2], "it is handled in the second run")
    # Stopped: the router may be included before the next start.
    app.include(router)
    async with app:
        await app.publish(3, key=name)
        await eventually(lambda: seen == [1, 2, 3], "it is handled in the third run")


async def test_what_fails_leaves_nothing_behind(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    seen: list[int] = []
    router = numbers_router(f"{name}.numbers", seen)
    router.declare(Binding(f"{name}.missing", f"{name}.numbers", "x"))
    app = make_app()

    @app.handle(int, queue=f"{name}.own")
    async def own(message: int) -> None: ...

    async with app:
        before = app.topology
        with pytest.raises(TopologyMismatch, match="missing"):
            await app.include_now(router)
        assert app.topology == before
        assert set(app.subscriptions) == {f"{name}.own"}
        await app.declare_now(Exchange(f"{name}.missing"))
        running = await app.include_now(router)
        await app.publish(1, exchange=f"{name}.missing", key="x")
        await eventually(lambda: seen == [1], "the second attempt works")
        with pytest.raises(ConfigError, match=rf"^the App has handlers of queue '{name}\.numbers' already"):
            await app.include_now(numbers_router(f"{name}.numbers", []))
        components = Router()
        components.include(Delay())
        with pytest.raises(
            ConfigError, match=r"^Delay starts with the App: include it before the App starts"
        ):
            await app.include_now(components)
        assert set(app.subscriptions) == {f"{name}.own", f"{name}.numbers"}
        await running.remove()
    with pytest.raises(TransportUnavailable, match="does not run"):
        await app.include_now(router)
    await amqp_client.channel.queue_delete(f"{name}.numbers")
    await amqp_client.channel.queue_delete(f"{name}.numbers.dead")


async def test_topology_that_another_router_needs_is_kept(make_app: MakeApp, name: str) -> None:
    shared = Exchange(f"{name}.shared")
    routers = [Router(), Router()]
    for router in routers:
        router.declare(shared)
    app = make_app()
    async with app:
        first, second = [await app.include_now(router) for router in routers]
        await first.remove()
        assert shared in app.topology
        await second.remove()
        assert shared not in app.topology
        await app.include_now(routers[0])
        await app.declare_now(shared)
    assert shared in app.topology


async def test_a_stop_during_a_removal_waits_for_it(make_app: MakeApp, name: str) -> None:
    router = Router()
    started, finish = asyncio.Event(), asyncio.Event()
    ended: list[int] = []

    @router.handle(int, queue=Queue(name))
    async def slow(message: int) -> None:
        started.set()
        await finish.wait()
        ended.append(message)

    app = make_app()
    await app.start()
    running = await app.include_now(router)
    await app.publish(1, key=name)
    await started.wait()
    removing = asyncio.create_task(running.remove())
    await eventually(lambda: not running.subscriptions, "the removal has begun")
    removing.cancel()
    stopping = asyncio.create_task(app.stop())
    await eventually(lambda: app.state is State.CLOSING, "it stops")
    finish.set()
    await stopping
    assert ended == [1]
    app.declare(Queue(name))


async def test_a_router_is_refused_while_the_app_starts() -> None:
    app = App("memory://")
    router = numbers_router("numbers", [])

    @app.on_start
    async def early() -> None:
        await app.include_now(router)

    with pytest.raises(
        ConfigError, match=r"^the App is starting or stopping: include the router before the start"
    ):
        await app.start()
    app = App("memory://")
    app.include(router)
