"""Partitions in every fault, with workers that are killed."""

from __future__ import annotations

import asyncio

from tests.patterns.conftest import PATIENCE, NewApp
from tests.patterns.faults.matrix import Fault, Matrix
from tests.patterns.partitioned_orders import OrderHandler
from tests.support.broker_process import BrokerProcess
from tests.support.polling import eventually
from tests.support.proxy import Proxy
from tests.support.worker_host import WorkerChannel
from tests.support.worker_processes import Workers
from warren.patterns import Once, RedisStore
from warren.sdk import App

MATRIX = Matrix("partitions", page="docs/patterns/partitions.md")


async def hand(worker: WorkerChannel, url: str, name: str, stop: str) -> None:
    """Handle orders in a worker that stops before or after the effect of number 1."""
    handler = OrderHandler(App(url), name, count=1)

    async def before(number: int) -> None:
        if (number, stop) == (1, "before"):
            await worker.report_and_wait("stands still")

    async def after(number: int) -> None:
        worker.report(f"did {number}")
        if (number, stop) == (1, "after"):
            await worker.report_and_wait("stands still")

    handler.before, handler.after = before, after  # type: ignore[method-assign]
    async with handler.app:
        await worker.report_and_wait("ready")


async def succeeded(url: str, workers: Workers, new_app: NewApp, name: str, stop: str) -> list[int]:
    """Kill a worker at number 1; return the numbers that the next one handled."""
    doomed = await workers.start(hand, url=url, name=name, stop=stop)
    await workers.wait_for("ready")
    handler = OrderHandler(new_app(), name, count=1)
    async with handler.app:
        await handler.publish(4, keys=1)
        await workers.wait_for("stands still")
        assert handler.done == []
        doomed.kill()
        await eventually(lambda: ("k0", 3) in handler.done, "the other one goes on")
    return [number for _, number in handler.done]


@MATRIX.shows(
    Fault.CRASH_BEFORE_EFFECT,
    "another process takes over: the message is redelivered, before those that follow it",
)
async def test_who_is_active_dies_before_its_effect(
    amqp_url: str, workers: Workers, new_app: NewApp, name: str
) -> None:
    did = await succeeded(amqp_url, workers, new_app, name, "before")
    assert did[-3:] == [1, 2, 3]


@MATRIX.shows(
    Fault.CRASH_AFTER_EFFECT,
    "another process takes over: the message is handled again, then those that follow",
)
async def test_who_is_active_dies_after_its_effect(
    amqp_url: str, workers: Workers, new_app: NewApp, name: str
) -> None:
    did = await succeeded(amqp_url, workers, new_app, name, "after")
    assert did[-3:] == [1, 2, 3]
    assert workers.reports.count("did 1") == 1


@MATRIX.shows(
    Fault.LOST_ACK,
    "the message is handled again, then those that follow",
)
async def test_the_acknowledgement_is_lost(amqp_url: str, new_app: NewApp, name: str) -> None:
    async with Proxy(amqp_url) as proxy:
        handler = OrderHandler(new_app(proxy.url), name, count=1)
        office = OrderHandler(new_app(), name, count=1, handles=False)

        async def deafen(number: int) -> None:
            if handler.done == [("k0", 0), ("k0", 1)]:
                proxy.to_server.hold()
                proxy.cut()
                proxy.to_server.release()

        handler.after = deafen  # type: ignore[method-assign]
        async with handler.app, office.app:
            await office.publish(4, keys=1)
            await eventually(lambda: ("k0", 3) in handler.done, "it goes on")
    numbers = [number for _, number in handler.done]
    assert numbers[-3:] == [1, 2, 3]
    assert numbers.count(1) == 2


@MATRIX.shows(
    Fault.LOST_CONFIRM,
    "the message is published again with the same id; if publishes are awaited, the copy comes before the"
    " messages that follow",
)
async def test_the_confirm_is_lost(amqp_url: str, new_app: NewApp, name: str) -> None:
    handler = OrderHandler(new_app(), name, count=1)
    async with handler.app, Proxy(amqp_url) as proxy:
        office = OrderHandler(new_app(proxy.url), name, count=1, handles=False)
        async with office.app:
            proxy.to_client.hold()
            publishing = asyncio.ensure_future(office.publish(3, keys=1))
            await eventually(lambda: handler.done == [("k0", 0)], "the broker has the first")
            proxy.cut()
            proxy.to_client.release()
            await publishing
            await eventually(lambda: ("k0", 2) in handler.done, "it goes on")
    assert [number for _, number in handler.done] == [0, 0, 1, 2]


@MATRIX.shows(
    Fault.DUPLICATE,
    "the message is handled twice, one after the other",
)
async def test_a_message_comes_twice(new_app: NewApp, name: str) -> None:
    handler = OrderHandler(new_app(), name)
    async with handler.app:
        for _ in range(2):
            await handler.partitions.publish(handler.order(key="k", number=1), message_id="the same")
        await eventually(lambda: handler.done == [("k", 1)] * 2, "it is handled twice")
    assert handler.most_at_once_per_key == 1


@MATRIX.shows(
    Fault.DUPLICATE,
    "`once=Once(store)` recognises the second",
)
async def test_a_message_comes_twice_to_a_handler_with_once(
    redis_url: str, new_app: NewApp, name: str
) -> None:
    once = Once(RedisStore(redis_url, prefix=f"{name}:", timeout=PATIENCE))
    handler = OrderHandler(new_app(), name, once=once)
    async with handler.app:
        for _ in range(2):
            await handler.partitions.publish(handler.order(key="k", number=1), message_id="the same")
        await eventually(lambda: once.statistics.duplicates == 1, "the second is known")
    assert handler.done == [("k", 1)]


MATRIX.spared(
    Fault.REORDERING,
    "messages are handled in the order in which the broker received them; a `Resequencer` orders them by "
    "number instead",
)
MATRIX.spared(
    Fault.STORE_DOWN,
    "no effect: there is no store",
)
MATRIX.spared(
    Fault.CLOCK_SKEW,
    "no effect: the pattern reads no clock",
)


@MATRIX.shows(
    Fault.BROKER_RESTART,
    "unacknowledged messages are redelivered, in order",
)
async def test_the_broker_is_killed_while_messages_wait(mortal_broker: BrokerProcess, name: str) -> None:
    office = OrderHandler(App(mortal_broker.url), name, handles=False)
    handler = OrderHandler(App(mortal_broker.url), name)
    async with office.app:
        await office.publish(3, keys=5)
        await asyncio.to_thread(mortal_broker.kill)
        await asyncio.to_thread(mortal_broker.start)
        async with handler.app:
            await eventually(lambda: len(handler.done) == 15, "all are done")
    assert all([number for own, number in handler.done if own == f"k{key}"] == [0, 1, 2] for key in range(5))
