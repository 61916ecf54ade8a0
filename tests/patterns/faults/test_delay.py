"""Delayed messages in every fault."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.patterns.conftest import PATIENCE, NewApp
from tests.patterns.faults.matrix import Fault, Matrix
from tests.patterns.faults.scenarios import restart
from tests.patterns.faults.skewed_clock import SkewedClock
from tests.support.broker_process import BrokerProcess
from tests.support.polling import eventually
from tests.support.processes import free_port
from tests.support.proxy import Proxy
from tests.support.redis import redis_server
from tests.support.worker_host import WorkerChannel
from tests.support.worker_processes import Workers
from warren.patterns import BinaryDelayQueues, Cancellation, Delay, RedisStore
from warren.patterns.delay import delay as delay_module
from warren.sdk import App, Command, Subscription

MATRIX = Matrix("delay", page="docs/patterns/delay.md")

STRATEGY = BinaryDelayQueues(unit=timedelta(milliseconds=50), levels=12)
SOON = timedelta(milliseconds=300)
LATER = timedelta(seconds=100)


class Ring(Command, queue="replaced"):
    text: str


@cache  # One class a queue: what it must reach is declared once.
def ring_in(queue_name: str) -> type[Ring]:
    class RingHere(Ring, queue=queue_name, type="ring"):
        pass

    return RingHere


class Bell:
    """An App that delays rings to itself and writes down which came."""

    def __init__(self, app: App, queue: str, redis: str = "") -> None:
        self.app = app
        self.queue = queue
        store = RedisStore(redis, prefix=f"{queue}:", timeout=PATIENCE) if redis else None
        self.delay = Delay(f"{queue}.delay", strategy=STRATEGY, store=store)
        self.rung: list[str] = []
        app.include(self.delay)

        @app.handle(ring_in(queue))
        async def ring(message: Any) -> None:
            self.rung.append(message.text)

    @property
    def due(self) -> Subscription:
        """By which it takes what is due; paused until all has happened that has to happen before."""
        return self.app.subscriptions[f"{self.delay.name}.due"]

    async def set(self, text: str, after: timedelta = SOON, **options: Any) -> None:
        await self.delay.after(ring_in(self.queue)(text=text), after, **options)

    async def rings(self, *texts: str) -> None:
        await eventually(lambda: sorted(self.rung) == sorted(texts), f"{texts} ring, not {self.rung}")


async def gate(worker: WorkerChannel, url: str, queue: str, redis: str, stop: str) -> None:
    """Forward due messages in a worker that stops before or after a publish."""
    bell = Bell(App(url), queue, redis)
    forward = bell.app.forward

    async def stopping_forward(*arguments: Any, **named: Any) -> None:
        if stop == "before":
            await worker.report_and_wait("about to forward")
        await forward(*arguments, **named)
        await worker.report_and_wait("forwarded")

    bell.app.forward = stopping_forward  # type: ignore[method-assign]
    async with bell.app:
        await bell.set("a", cancel_key="k", message_id="m1")
        await asyncio.Event().wait()


@MATRIX.shows(
    Fault.CRASH_BEFORE_EFFECT,
    "delayed messages are on the broker; another process forwards those that the dead process was forwarding",
)
async def test_a_process_dies_before_it_forwards(
    amqp_url: str, redis_url: str, workers: Workers, new_app: NewApp, name: str
) -> None:
    doomed = await workers.start(gate, url=amqp_url, queue=name, redis=redis_url, stop="before")
    await workers.wait_for("about to forward")
    doomed.kill()
    other = Bell(new_app(), name, redis_url)
    async with other.app:
        await other.rings("a")
        assert await other.delay.cancel("k") is Cancellation.TOO_LATE


@MATRIX.shows(
    Fault.LOST_ACK,
    "as after a crash: the message may arrive twice, with the same message id",
)
@MATRIX.shows(
    Fault.CRASH_AFTER_EFFECT,
    "the message is forwarded again with the same message id: it arrives twice, and `Once` recognises the"
    " copy",
)
async def test_a_process_dies_after_it_forwarded(
    amqp_url: str, redis_url: str, workers: Workers, new_app: NewApp, name: str
) -> None:
    doomed = await workers.start(gate, url=amqp_url, queue=name, redis=redis_url, stop="after")
    await workers.wait_for("forwarded")
    doomed.kill()
    other = Bell(new_app(), name, redis_url)
    async with other.app:
        await eventually(lambda: other.delay.statistics.passed == 1, "it is forwarded again")


@MATRIX.shows(
    Fault.LOST_CONFIRM,
    "the publisher sends the message again with the same id: both copies are delayed and arrive; with a "
    "`cancel_key`, both are cancelled",
)
async def test_the_confirm_of_the_publish_is_lost(
    amqp_url: str, redis_url: str, new_app: NewApp, name: str
) -> None:
    here = Bell(new_app(), name, redis_url)
    async with here.app, Proxy(amqp_url) as proxy:
        away = Bell(App(proxy.url), name, redis_url)
        async with away.app:
            await away.set("first", timedelta(milliseconds=50))
            await eventually(lambda: "first" in here.rung + away.rung, "its way is made")
            for text, after, cancel_key in (("kept", SOON, None), ("cancelled", LATER, "k")):
                proxy.to_client.hold()
                setting = asyncio.ensure_future(away.set(text, after, cancel_key=cancel_key))
                await asyncio.sleep(0.1)
                proxy.cut()
                proxy.to_client.release()
                await setting
            assert await here.delay.cancel("k") is Cancellation.CANCELLED
            await eventually(lambda: "kept" in here.rung + away.rung, "it rings")
            assert [one async for one in here.delay.delayed()] == []
    assert "cancelled" not in here.rung + away.rung


@MATRIX.shows(
    Fault.DUPLICATE,
    "a handler that runs twice delays two messages; with a `cancel_key`, the second replaces the first "
    "and one arrives",
)
async def test_a_handler_delays_twice(redis_url: str, new_app: NewApp, name: str) -> None:
    here = Bell(new_app(), name, redis_url)
    async with here.app:
        await here.due.pause()
        for _ in range(2):
            await here.set("plain")
            await here.set("by key", cancel_key="k")
        await here.due.resume()
        await here.rings("plain", "plain", "by key")
        await eventually(lambda: here.delay.statistics.superseded == 1, "the other one has ended")


@MATRIX.shows(
    Fault.REORDERING,
    "messages arrive in the order of their times; messages with the same time in the order of publishing",
)
@pytest.mark.slow  # waits for 12 s
async def test_messages_arrive_in_the_order_of_their_times(new_app: NewApp, name: str) -> None:
    here = Bell(new_app(), name)
    async with here.app:
        times = (("d", 4), ("b", 2), ("a", 1), ("c", 2))
        await asyncio.gather(*(here.set(text, count * timedelta(seconds=3)) for text, count in times))
        await eventually(lambda: len(here.rung) == 4, "all ring")
    assert here.rung == ["a", "b", "c", "d"]


@MATRIX.shows(
    Fault.BROKER_RESTART,
    "delayed messages are in durable queues, and their time goes on meanwhile; each hop is atomic",
)
async def test_the_broker_is_killed_while_messages_wait(mortal_broker: BrokerProcess, name: str) -> None:
    here = Bell(App(mortal_broker.url), name)
    async with here.app:
        for number in range(20):
            await here.set(f"{number}", timedelta(milliseconds=50 * (number + 4)))
        await restart(mortal_broker)
        await eventually(lambda: set(here.rung) == {f"{n}" for n in range(20)}, "all ring")


@MATRIX.shows(
    Fault.STORE_DOWN,
    "no effect without `store=`. With it, `after` with a `cancel_key` and `cancel` wait for a minute, "
    "then raise `StoreUnavailable`; due messages are postponed by 5 s at a time, so that no cancelled "
    "message is forwarded",
)
async def test_redis_is_stopped_when_a_message_is_due(
    new_app: NewApp, name: str, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(delay_module, "RETRY_AFTER", timedelta(milliseconds=200))
    port = free_port()
    durable = ("--appendonly", "yes", "--appendfsync", "always")
    here = Bell(new_app(), name, f"redis://127.0.0.1:{port}/0")
    async with here.app:
        with redis_server(tmp_path, *durable, port=port):
            await here.due.pause()
            await here.set("a", cancel_key="a")
            await here.set("b", cancel_key="b")
            assert await here.delay.cancel("b") is Cancellation.CANCELLED
        await here.due.resume()
        await eventually(lambda: here.delay.statistics.postponed >= 2, "both are put off")
        assert here.rung == []
        with redis_server(tmp_path, *durable, port=port):
            await here.rings("a")
            await eventually(lambda: here.delay.statistics.cancelled == 1, "the other one has ended")


@MATRIX.shows(
    Fault.CLOCK_SKEW,
    "`after` is a duration, which the broker alone measures; `at` is as accurate as the publisher's "
    "clock; cancelling compares no times, and forwarding only times of a week and more (`keep`)",
)
async def test_a_publisher_whose_clock_is_an_hour_ahead(amqp_url: str, redis_url: str, name: str) -> None:
    ahead = SkewedClock(3600.0)
    here = Bell(App(amqp_url, clock=ahead), name, redis_url)
    async with here.app:
        await here.set("after", cancel_key="k")
        now_there = datetime.fromtimestamp(ahead.now(), UTC)
        await here.delay.at(ring_in(name)(text="at"), now_there + SOON)
        await here.rings("after", "at")
