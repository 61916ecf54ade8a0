"""Delays on a broker: any delay, a set time, and a long one that does not hold up a short one."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import aio_pika
import pytest

from tests.patterns.conftest import NewApp
from tests.support.async_client import take_one
from tests.support.polling import eventually
from warren.patterns import BinaryDelayQueues, Delay, DelayedExchange, DelayStrategy, wait_queue
from warren.sdk import App, Command, ConfigError, Declarable, Event, Queue, TopologyMismatch

UNIT = timedelta(milliseconds=50)


@pytest.fixture(params=["levels", "native"])
def strategy(request: pytest.FixtureRequest) -> DelayStrategy:
    """Return each delay strategy; the second needs an exchange type that Debian's RabbitMQ lacks."""
    if request.param == "levels":
        return BinaryDelayQueues(unit=UNIT, levels=10)
    if request.config.getoption("--amqp-url") is not None:
        pytest.skip("no exchange type x-delayed-message")
    return DelayedExchange()


class DelayedReceiver:
    """App that sends delayed messages to itself and records when each arrives."""

    def __init__(self, app: App, name: str, strategy: DelayStrategy) -> None:
        class Switch(Command, queue=f"{name}.lamp"):
            number: int

        class BellRang(Event, exchange=f"{name}.bells", key="bell.rang", audience=[f"{name}.listeners"]):
            number: int

        self.switch, self.bell_rang = Switch, BellRang
        self.app = app
        self.delay = Delay(f"{name}.delay", strategy=strategy)
        self.app.include(self.delay)
        self.arrived: dict[int, datetime] = {}
        self.order: list[int] = []

        @self.app.handle(Switch)
        async def on_switch(switch: Switch) -> None:
            self.record(switch.number)

        @self.app.handle(BellRang, queue=f"{name}.listeners")
        async def on_bell(bell: BellRang) -> None:
            self.record(bell.number)

    def record(self, number: int) -> None:
        self.order.append(number)
        self.arrived.setdefault(number, datetime.now(UTC))

    async def wait_for(self, count: int) -> None:
        await eventually(lambda: len(self.order) >= count, f"{count} messages arrive")


async def test_a_long_delay_does_not_hold_up_a_short_one(
    new_app: NewApp, name: str, strategy: DelayStrategy
) -> None:
    """The long delay is longer than any pause of a busy machine, after which several messages would be due in any order."""
    receiver = DelayedReceiver(new_app(), name, strategy)
    async with receiver.app:
        began = datetime.now(UTC)
        await asyncio.gather(
            *(
                receiver.delay.after(receiver.switch(number=number), timedelta(milliseconds=milliseconds))
                for number, milliseconds in ((1, 51_000), (2, 1000), (3, 400), (4, 0))
            )
        )
        await receiver.wait_for(3)
        assert sorted(receiver.order) == [2, 3, 4]
    for number, milliseconds in ((2, 1000), (3, 400)):
        assert receiver.arrived[number] - began >= timedelta(milliseconds=milliseconds - 10)


async def test_a_message_is_delayed_until_a_set_time_and_not_at_all_if_it_is_past(
    new_app: NewApp, name: str, strategy: DelayStrategy
) -> None:
    receiver = DelayedReceiver(new_app(), name, strategy)
    async with receiver.app:
        now = datetime.now(UTC)
        await asyncio.gather(
            receiver.delay.at(receiver.switch(number=1), now + timedelta(milliseconds=51_000)),
            receiver.delay.at(receiver.switch(number=2), now - timedelta(hours=1)),
        )
        await receiver.wait_for(1)
        assert receiver.order == [2]
        await receiver.delay.at(receiver.switch(number=3), now + timedelta(milliseconds=2825))
        await receiver.wait_for(2)
        with pytest.raises(ConfigError, match="no time zone"):
            await receiver.delay.at(receiver.switch(number=4), datetime(2026, 1, 1))
    assert receiver.order == [2, 3]
    assert receiver.arrived[3] >= now + timedelta(milliseconds=2815)


async def test_a_delayed_event_is_published_to_its_exchange_with_its_routing_key(
    new_app: NewApp, name: str, strategy: DelayStrategy
) -> None:
    receiver = DelayedReceiver(new_app(), name, strategy)
    async with receiver.app:
        await receiver.delay.after(receiver.bell_rang(number=1), timedelta(milliseconds=100))
        await receiver.wait_for(1)


async def test_messages_with_different_delays_arrive_after_their_delays(
    new_app: NewApp, name: str, strategy: DelayStrategy
) -> None:
    receiver = DelayedReceiver(new_app(), name, strategy)
    async with receiver.app:
        began = datetime.now(UTC)
        delays = {n: timedelta(milliseconds=10 * (n * 37 % 60)) for n in range(60)}
        await asyncio.gather(*(receiver.delay.after(receiver.switch(number=n), delays[n]) for n in delays))
        await receiver.wait_for(60)
    assert sorted(receiver.order) == sorted(delays)
    for number, arrived in receiver.arrived.items():
        assert arrived - began >= delays[number] - timedelta(milliseconds=10)


async def test_concurrent_delays_declare_their_topology_once(
    new_app: NewApp, name: str, strategy: DelayStrategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver = DelayedReceiver(new_app(), name, strategy)
    declare_now, calls = receiver.app.declare_now, 0

    async def counted(*items: Declarable) -> None:
        nonlocal calls
        calls += 1
        await declare_now(*items)

    monkeypatch.setattr(receiver.app, "declare_now", counted)
    async with receiver.app:
        delays = [timedelta(milliseconds=100)] * 100
        await asyncio.gather(
            *(receiver.delay.after(receiver.switch(number=n), d) for n, d in enumerate(delays))
        )
        await receiver.wait_for(100)
    assert calls == 2  # What the class reaches, and the strategy to it.


async def test_a_delayed_message_arrives_in_a_queue_that_was_declared_again(
    new_app: NewApp, amqp_url: str, name: str, strategy: DelayStrategy
) -> None:
    """The queue is deleted and declared again before the message is published, as a consumer does."""
    app = new_app()
    delay = Delay(f"{name}.delay", strategy=strategy)
    app.include(delay)
    app.declare(Queue(f"{name}.target"))
    async with app:
        await delay.after(b"first", timedelta(milliseconds=50), key=f"{name}.target")
        assert (await take_one(amqp_url, f"{name}.target")).body == b"first"
        async with await aio_pika.connect(amqp_url) as connection:
            channel = await connection.channel()
            await channel.queue_delete(f"{name}.target")
            await app.declare_now(Queue(f"{name}.target"))
        await delay.after(b"second", timedelta(milliseconds=50), key=f"{name}.target")
        assert (await take_one(amqp_url, f"{name}.target")).body == b"second"


async def test_a_delayed_message_whose_queue_was_deleted_is_kept(
    new_app: NewApp, amqp_url: str, name: str, strategy: DelayStrategy
) -> None:
    """The message waits until the queue is declared again, and does not end in the queue for lost messages."""
    app = new_app()
    delay = Delay(f"{name}.delay", strategy=strategy)
    app.include(delay)
    app.declare(Queue(f"{name}.target"), Queue(f"{name}.other"))
    async with app:
        with pytest.raises(TopologyMismatch, match="nobody"):
            await delay.after(b"{}", timedelta(milliseconds=100), key=f"{name}.nobody")
        # The strategy there stands, and its time is longer than what follows takes.
        await delay.after(b"first", timedelta(milliseconds=50), key=f"{name}.target")
        assert (await take_one(amqp_url, f"{name}.target")).body == b"first"
        connection = await aio_pika.connect(amqp_url)
        async with connection:
            await (await connection.channel()).queue_delete(f"{name}.target")
        await delay.after(b"{}", timedelta(milliseconds=300), key=f"{name}.target")
        # A message for another target overtakes the first, so that it was due before the queue is declared again.
        await delay.after(b"{}", timedelta(milliseconds=400), key=f"{name}.other")
        await take_one(amqp_url, f"{name}.other")
        await app.declare_now(Queue(f"{name}.target"))
        kept = await take_one(amqp_url, f"{name}.target")
    assert kept.body == b"{}"
    assert (kept.headers["warren-exchange"], kept.headers["warren-key"]) == ("", f"{name}.target")


async def test_a_constant_delay_needs_one_wait_queue(new_app: NewApp, name: str) -> None:
    app = new_app()
    target = Queue(f"{name}.ring")
    waiting = wait_queue(target.name, timedelta(milliseconds=200))
    app.declare(target, waiting)
    async with app:
        began = datetime.now(UTC)
        await app.publish(b"{}", key=waiting.name)
        await take_one(str(app.url), target.name)
        assert datetime.now(UTC) - began >= timedelta(milliseconds=190)


async def test_invalid_arguments_raise_config_errors(new_app: NewApp, name: str) -> None:
    receiver = DelayedReceiver(new_app(), name, BinaryDelayQueues(unit=UNIT, levels=10))
    with pytest.raises(ConfigError, match="belongs to no App"):
        await Delay().after(b"", timedelta(seconds=1), key="q")
    with pytest.raises(ConfigError, match="whole milliseconds"):
        BinaryDelayQueues(unit=timedelta(microseconds=1500))
    with pytest.raises(ConfigError, match="from 1 to 28"):
        BinaryDelayQueues(levels=29)
    async with receiver.app:
        with pytest.raises(ConfigError, match="is the longest of BinaryDelayQueues"):
            await receiver.delay.after(receiver.switch(number=1), timedelta(minutes=1))
        with pytest.raises(ConfigError, match="needs an address"):
            await receiver.delay.after(b"", timedelta(seconds=1))
        with pytest.raises(ConfigError, match="too long to be delayed"):
            await receiver.delay.after(b"", timedelta(seconds=1), key="k" * 240)
        with pytest.raises(ConfigError, match="wildcard"):
            await receiver.delay.after(b"", timedelta(seconds=1), exchange="e", key="a.*")
        with pytest.raises(ConfigError, match="cannot cancel or list"):
            await receiver.delay.after(receiver.switch(number=1), timedelta(seconds=1), cancel_key="k")
        with pytest.raises(ConfigError, match="cannot cancel or list"):
            await receiver.delay.cancel("k")
