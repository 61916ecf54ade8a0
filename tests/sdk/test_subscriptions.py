"""Subscriptions: pause, resume, cancel, and the circuit breaker."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.sdk.conftest import MakeApp
from tests.support.async_client import AsyncClient
from tests.support.polling import eventually
from tests.support.proxy import Proxy
from warren.sdk import App, CircuitBreaker, ConfigError, Delivery, Mode, Queue, Retry, Timer


async def test_a_paused_queue_keeps_its_messages_until_it_is_resumed(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    app = make_app()
    seen: list[bytes] = []
    started, finish = asyncio.Event(), asyncio.Event()

    @app.handle(bytes, queue=name, concurrency=1, prefetch=5)
    async def take(body: bytes) -> None:
        started.set()
        await finish.wait()
        seen.append(body)

    async with app:
        subscription = app.subscriptions[name]
        await app.publish_many([b"%d" % number for number in range(8)], key=name)
        await started.wait()
        await eventually(lambda: subscription.statistics.delivered == 5, "the prefetch is used")
        await subscription.pause()
        assert (subscription.mode, subscription.active, app.ready) == (Mode.PAUSED, False, True)
        await amqp_client.holds(name, 7)
        finish.set()
        await eventually(
            lambda: subscription.statistics.acknowledged == 1, "what ran went on, on its channel"
        )
        await subscription.pause()
        assert (seen, subscription.statistics.requeued) == ([b"0"], 4)
        await subscription.resume()
        assert (subscription.mode, subscription.active) == (Mode.CONSUMING, True)
        await subscription.resume()
        await eventually(lambda: subscription.statistics.acknowledged == 8, "the rest is handled")
    assert seen == [b"%d" % number for number in range(8)], "in their order"


async def test_a_cancelled_subscription_cannot_be_resumed(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    app = make_app()

    @app.handle(bytes, queue=name)
    async def take(body: bytes) -> None:
        pytest.fail("it is cancelled")

    async with app:
        await app.subscriptions[name].cancel()
        await app.publish(b"1", key=name)
        with pytest.raises(ConfigError, match="is cancelled"):
            await app.subscriptions[name].resume()
        with pytest.raises(ConfigError, match="is cancelled"):
            await app.subscriptions[name].pause()
        assert app.ready
    await amqp_client.holds(name, 1)


async def test_a_reconnect_does_not_resume(make_app: MakeApp, proxy: Proxy, name: str) -> None:
    app = make_app(proxy.url)
    seen: list[bytes] = []

    @app.handle(bytes, queue=name)
    async def take(body: bytes) -> None:
        seen.append(body)

    async with app:
        subscription = app.subscriptions[name]
        await subscription.pause()
        await app.publish(b"1", key=name)
        proxy.cut()
        await eventually(lambda: app.statistics().reconnects >= 2 and app.ready, "both connections are back")
        assert (seen, subscription.active) == ([], False)
        await subscription.resume()
        await eventually(lambda: seen == [b"1"], "it is handled")


async def test_repeated_pause_and_resume_loses_no_message(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    app = make_app()
    seen: set[bytes] = set()

    @app.handle(bytes, queue=Queue(name, type="classic"), concurrency=3, ordered_by=lambda body: body[-1:])
    async def take(body: bytes) -> None:
        await asyncio.sleep(0)
        seen.add(body)

    async with app:
        subscription = app.subscriptions[name]
        publishing = asyncio.create_task(app.publish_many([b"%d" % n for n in range(300)], key=name))
        for _ in range(10):
            pausing = asyncio.create_task(subscription.pause())
            await asyncio.sleep(0)
            pausing.cancel()
            await asyncio.gather(subscription.resume(), subscription.pause(), subscription.resume())
        await publishing
        await eventually(lambda: len(seen) == 300, "all are handled")
        await eventually(
            lambda: subscription.snapshot().waiting == subscription.snapshot().running == 0, "it rests"
        )
        assert subscription.active
    await amqp_client.holds(name, 0)


class Switched:
    """A clock whose timers the test fires."""

    def __init__(self, app: App) -> None:
        self._now = app.clock.now
        self.timers: list[Any] = []

    def now(self) -> float:
        return self._now()

    def call_at(self, when: float, callback: Any) -> Timer:
        self.timers.append(callback)
        return asyncio.get_running_loop().call_later(3600, callback)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


async def test_a_circuit_opens_half_opens_and_closes(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    app = make_app(retry=Retry(1))
    clock = Switched(app)
    app.clock.follow(clock)
    broken = True
    tried: list[bytes] = []
    queue = Queue(name, type="classic")
    breaker = CircuitBreaker(failures=3, pause="1m", on=(ConnectionError,))

    @app.handle(bytes, queue=queue, concurrency=1, prefetch=4, breaker=breaker)
    async def take(body: bytes) -> None:
        tried.append(body)
        if body == b"bad":
            raise ValueError
        if broken:
            raise ConnectionError

    async with app:
        subscription = app.subscriptions[name]
        await app.publish_many([b"0", b"bad", b"1", b"2", b"3", b"4"], key=name)
        await eventually(lambda: subscription.mode is Mode.TRIPPED, "the third failure opens the circuit")
        await eventually(lambda: subscription.snapshot().waiting == 0, "the rest is given back")
        assert tried == [b"0", b"bad", b"1", b"2"]
        await amqp_client.holds(f"{name}.dead", 3)
        await amqp_client.holds(name, 3)
        for _ in range(2):
            clock.timers.pop()()
            await eventually(
                lambda: subscription.mode is Mode.TRIPPED and bool(clock.timers), "the trial failed"
            )
            await amqp_client.holds(name, 3)
        assert tried[4:] == [b"2", b"2"], "one message is tried, and is not lost over it"
        broken = False
        clock.timers.pop()()
        await eventually(lambda: len(tried) == 9, "all are handled")
        await eventually(lambda: subscription.active and subscription.mode is Mode.CONSUMING, "it is closed")
        assert tried[6:] == [b"2", b"3", b"4"]
        assert (subscription.statistics.tripped, app.statistics().handlers[name].dead_lettered) == (3, 3)


async def test_an_open_circuit_can_be_closed_by_hand(make_app: MakeApp, name: str) -> None:
    app = make_app(retry=Retry(1))
    broken = True
    seen: list[bytes] = []

    @app.handle(bytes, queue=name, breaker=CircuitBreaker(failures=1, pause="1h"))
    async def take(body: bytes, delivery: Delivery) -> None:
        if broken:
            raise ConnectionError
        seen.append(body)

    async with app:
        subscription = app.subscriptions[name]
        await app.publish(b"1", key=name)
        await eventually(lambda: subscription.mode is Mode.TRIPPED, "it is open")
        broken = False
        await subscription.resume()
        await eventually(lambda: seen == [b"1"], "it is handled")


async def test_a_subscription_exists_while_the_app_runs(make_app: MakeApp, name: str) -> None:
    app = make_app()

    @app.handle(bytes, queue=name)
    async def take(body: bytes) -> None: ...

    async with app:
        assert list(app.subscriptions) == [name]
        with pytest.raises(KeyError):
            app.subscriptions["other"]
    with pytest.raises(ConfigError, match="failures must be at least 1"):
        CircuitBreaker(failures=0)
    with pytest.raises(ConfigError, match="'soon' is no duration"):
        CircuitBreaker(pause="soon")


@pytest.mark.parametrize("mode", [Mode.PAUSED, Mode.CANCELLED, None])
async def test_a_circuit_does_not_override_a_users_choice(
    make_app: MakeApp, amqp_client: AsyncClient, name: str, mode: Mode | None
) -> None:
    app = make_app(retry=Retry(1))
    clock = Switched(app)
    app.clock.follow(clock)
    started, finish = asyncio.Event(), asyncio.Event()

    @app.handle(bytes, queue=name, concurrency=1, breaker=CircuitBreaker(failures=1))
    async def take(body: bytes) -> None:
        started.set()
        await finish.wait()
        raise ConnectionError

    await app.start()
    subscription = app.subscriptions[name]
    await app.publish(b"1", key=name)
    await started.wait()
    stopping: asyncio.Task[None] | None = None
    if mode is None:
        stopping = asyncio.create_task(app.stop())
        await eventually(lambda: app.state.value == "closing", "it stops")
    else:
        await (subscription.pause() if mode is Mode.PAUSED else subscription.cancel())
    finish.set()
    await eventually(lambda: subscription.statistics.requeued == 1, "the message goes back")
    assert (clock.timers, subscription.statistics.tripped) == ([], 0)
    assert mode is None or subscription.mode is mode
    await (stopping or app.stop())
    await amqp_client.holds(name, 1)
