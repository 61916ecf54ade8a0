"""Virtual clock: timers fire at their exact time, in order, and all their work is done before the time moves on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aio_pika
import pika
import pytest
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage

from tests.support.blocking_client import Channel, Connection
from tests.support.in_process_broker import InProcessBroker
from warren.broker import Broker, VirtualClock
from warren.broker.model.virtual_clock import Unsettled

PATIENCE = 60.0
"""Seconds: the machine may be busy with other tests."""


@contextlib.asynccontextmanager
async def opened(clock: VirtualClock, data_dir: Path | None = None) -> AsyncIterator[AbstractChannel]:
    """Open an aio-pika channel to a broker on the same event loop."""
    async with Broker(clock=clock, data_dir=data_dir) as broker:
        connection = await aio_pika.connect(broker.url)
        async with connection:
            yield await connection.channel()


async def delay_line(channel: AbstractChannel, ttl: int, to: str) -> str:
    """Declare a queue whose messages are dead-lettered to another one after a TTL."""
    arguments: dict[str, Any] = {
        "x-message-ttl": ttl,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": to,
    }
    queue = await channel.declare_queue(f"wait-{ttl}-{to}", arguments=arguments)
    return queue.name


def message(body: bytes) -> aio_pika.Message:
    return aio_pika.Message(body, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)


@pytest.mark.parametrize("stored", [False, True])
async def test_delays_that_a_handler_starts_count_from_the_time_of_its_message(
    tmp_path: Path, stored: bool
) -> None:
    clock = VirtualClock(start=0, patience=PATIENCE)
    async with opened(clock, tmp_path if stored else None) as channel:
        seen: list[tuple[float, bytes]] = []
        arrivals = await channel.declare_queue("arrivals", durable=True)
        again = await delay_line(channel, 1000, "arrivals")

        async def handle(delivery: AbstractIncomingMessage) -> None:
            seen.append((clock.now(), delivery.body))
            body = b"%d" % (int(delivery.body) + 1)
            await channel.default_exchange.publish(message(body), again)
            await delivery.ack()

        await arrivals.consume(handle)
        await channel.default_exchange.publish(message(b"1"), again)
        await clock.advance(10)
        assert seen == [(float(number), b"%d" % number) for number in range(1, 11)]
        assert clock.now() == 10


async def test_timers_fire_in_order() -> None:
    clock = VirtualClock(start=0, patience=PATIENCE)
    async with opened(clock) as channel:
        seen: list[tuple[float, bytes]] = []
        arrivals = await channel.declare_queue("arrivals")

        async def handle(delivery: AbstractIncomingMessage) -> None:
            seen.append((round(clock.now(), 3), delivery.body))

        await arrivals.consume(handle, no_ack=True)
        times = [(number * 7919) % 1000 + 1 for number in range(60)]
        for ttl in times:
            queue = await delay_line(channel, ttl, "arrivals")
            await channel.default_exchange.publish(message(b"%d" % ttl), queue)
        await clock.advance(0.5)
        assert seen == [(ttl / 1000, b"%d" % ttl) for ttl in sorted(times) if ttl <= 500]
        await clock.advance(0.6)
        assert seen == [(ttl / 1000, b"%d" % ttl) for ttl in sorted(times)]


async def test_advance_by_a_decade() -> None:
    clock = VirtualClock(start=0, patience=PATIENCE)
    async with opened(clock) as channel:
        queue = await channel.declare_queue("late")
        waiting = await delay_line(channel, 315_360_000_000, "late")
        await channel.default_exchange.publish(message(b"x"), waiting)
        await clock.advance(315_359_999.999)
        assert await queue.get(fail=False) is None
        await clock.advance(0.001)
        assert await queue.get(fail=False) is not None


async def test_sleep_ends_at_its_time() -> None:
    clock = VirtualClock(start=100, patience=PATIENCE)
    woken: list[float] = []

    async def sleeper(seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append(clock.now())

    async with asyncio.TaskGroup() as group:
        for seconds in (3, 1, 0, 2):
            group.create_task(sleeper(seconds))
        await clock.advance(2.5)
        assert woken == [100, 101, 102]
        await clock.advance(1)
    assert woken == [100, 101, 102, 103]


async def test_advance_waits_for_work_and_names_it() -> None:
    clock = VirtualClock(patience=0.1)
    work = ["the handler of billing"]
    forget = clock.watch(lambda: work[0] if work else "")
    with pytest.raises(Unsettled, match=r"after 0\.1 s of real time there is still the handler of billing"):
        await clock.advance(60)
    # Nothing has happened meanwhile, and it goes on when the work is done.
    assert clock.now() == 1_000_000_000
    clock.patience = PATIENCE
    asyncio.get_running_loop().call_later(0.02, work.clear)
    await clock.advance(60)
    assert clock.now() == 1_000_000_060
    work.append("forgotten")
    forget()
    await clock.advance(1)


async def test_only_one_advance_at_a_time() -> None:
    clock = VirtualClock(patience=PATIENCE)
    first = asyncio.create_task(clock.advance(1))
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match=r"another advance\(\) is in progress"):
        await clock.advance(1)
    await first


def test_publishes_of_another_thread_are_processed_before_the_time_moves(
    timed: Channel, inprocess: InProcessBroker
) -> None:
    """The publishes are not confirmed: they are on the way when the clock is advanced."""
    dead_letter_queue = timed.declare(exclusive=True)
    queue = timed.declare(
        exclusive=True,
        x_message_ttl=1000,
        x_dead_letter_exchange="",
        x_dead_letter_routing_key=dead_letter_queue,
    )
    for _ in range(100):
        timed.publish(queue, bytes(50_000))
    inprocess.advance(1)
    assert (timed.ready(queue), timed.ready(dead_letter_queue)) == (0, 100)


def test_unread_deliveries_do_not_block_advance(timed: Channel, inprocess: InProcessBroker) -> None:
    """The client does not read its deliveries before the clock has moved."""
    queue = timed.declare(exclusive=True)
    timed.consume(queue, "tag")
    for number in range(50):
        timed.publish(queue, b"%d" % number)
    inprocess.advance(3600)
    assert [delivery.body for delivery in timed.deliveries(50)] == [b"%d" % number for number in range(50)]


def test_advance_with_a_blocking_client(inprocess: InProcessBroker) -> None:
    parameters = pika.URLParameters(inprocess.url)
    parameters.socket_timeout = parameters.stack_timeout = PATIENCE
    connection = pika.BlockingConnection(parameters)
    channel = connection.channel()
    channel.queue_declare("dead-letters")
    channel.queue_declare(
        "dying",
        arguments={
            "x-message-ttl": 60_000,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": "dead-letters",
        },
    )
    channel.basic_publish("", "dying", b"x")
    inprocess.advance(59.999)
    assert channel.basic_get("dead-letters", auto_ack=True)[2] is None
    inprocess.advance(0.001)
    assert channel.basic_get("dead-letters", auto_ack=True)[2] == b"x"
    connection.close()


def test_advance_does_not_wait_for_a_stopped_broker(inprocess: InProcessBroker) -> None:
    with Connection(inprocess.url) as connection:
        connection.channel().declare("q")
    inprocess.restart()
    inprocess.advance(1)
    with Connection(inprocess.url) as connection:
        assert not connection.channel().exists("q")


async def test_a_poll_is_made_after_an_event_and_when_the_time_has_passed() -> None:
    clock = VirtualClock(start=0.0)
    looks: list[float] = []

    def look() -> None:
        looks.append(clock.now())
        clock.poll_at(clock.now() + 1, look)

    clock.poll_at(1, look)
    await clock.advance(1000)
    assert looks == [1, 1000]
    clock.call_at(1500.5, lambda: None)
    await clock.advance(1000)
    assert looks == [1, 1000, 1001, 1500.5, 2000]
    assert clock.fired == 6


async def test_a_cancelled_poll_is_not_made() -> None:
    clock = VirtualClock(start=0.0)
    clock.poll_at(1, lambda: pytest.fail("it was cancelled")).cancel()
    await clock.advance(1000)
    assert clock.fired == 0
