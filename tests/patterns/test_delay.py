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
def way(request: pytest.FixtureRequest) -> DelayStrategy:
    """Both ways to wait pass the same tests; the second is an exchange type that Debian's RabbitMQ lacks."""
    if request.param == "levels":
        return BinaryDelayQueues(unit=UNIT, levels=10)
    if request.config.getoption("--amqp-url") is not None:
        pytest.skip("no exchange type x-delayed-message")
    return DelayedExchange()


class House:
    """Receiver of delayed messages that records each with its time."""

    def __init__(self, app: App, name: str, way: DelayStrategy) -> None:
        class Switch(Command, queue=f"{name}.lamp"):
            number: int

        class Rang(Event, exchange=f"{name}.bells", key="bell.rang", audience=[f"{name}.ears"]):
            number: int

        self.switch, self.rang = Switch, Rang
        self.app = app
        self.delay = Delay(f"{name}.delay", strategy=way)
        self.app.include(self.delay)
        self.arrived: dict[int, datetime] = {}
        self.order: list[int] = []

        @self.app.handle(Switch)
        async def lamp(switch: Switch) -> None:
            self.note(switch.number)

        @self.app.handle(Rang, queue=f"{name}.ears")
        async def ears(bell: Rang) -> None:
            self.note(bell.number)

    def note(self, number: int) -> None:
        self.order.append(number)
        self.arrived.setdefault(number, datetime.now(UTC))

    async def has(self, count: int) -> None:
        await eventually(lambda: len(self.order) >= count, f"{count} messages arrive")


async def test_a_long_delay_does_not_hold_up_a_short_one(
    new_app: NewApp, name: str, way: DelayStrategy
) -> None:
    """The long one is longer than a machine stands still: after that several would be due, and come in any order."""
    house = House(new_app(), name, way)
    async with house.app:
        began = datetime.now(UTC)
        await asyncio.gather(
            *(
                house.delay.after(house.switch(number=number), timedelta(milliseconds=milliseconds))
                for number, milliseconds in ((1, 51_000), (2, 1000), (3, 400), (4, 0))
            )
        )
        await house.has(3)
        assert sorted(house.order) == [2, 3, 4]
    for number, milliseconds in ((2, 1000), (3, 400)):
        assert house.arrived[number] - began >= timedelta(milliseconds=milliseconds - 10)


async def test_a_set_time_and_one_that_is_past(new_app: NewApp, name: str, way: DelayStrategy) -> None:
    house = House(new_app(), name, way)
    async with house.app:
        now = datetime.now(UTC)
        await asyncio.gather(
            house.delay.at(house.switch(number=1), now + timedelta(milliseconds=51_000)),
            house.delay.at(house.switch(number=2), now - timedelta(hours=1)),
        )
        await house.has(1)
        assert house.order == [2]
        await house.delay.at(house.switch(number=3), now + timedelta(milliseconds=2825))
        await house.has(2)
        with pytest.raises(ConfigError, match="no time zone"):
            await house.delay.at(house.switch(number=4), datetime(2026, 1, 1))
    assert house.order == [2, 3]
    assert house.arrived[3] >= now + timedelta(milliseconds=2815)


async def test_events_reach_their_exchange_with_their_own_key(
    new_app: NewApp, name: str, way: DelayStrategy
) -> None:
    house = House(new_app(), name, way)
    async with house.app:
        await house.delay.after(house.rang(number=1), timedelta(milliseconds=100))
        await house.has(1)


async def test_many_delays_arrive_each_in_its_time(new_app: NewApp, name: str, way: DelayStrategy) -> None:
    house = House(new_app(), name, way)
    async with house.app:
        began = datetime.now(UTC)
        delays = {n: timedelta(milliseconds=10 * (n * 37 % 60)) for n in range(60)}
        await asyncio.gather(*(house.delay.after(house.switch(number=n), delays[n]) for n in delays))
        await house.has(60)
    assert sorted(house.order) == sorted(delays)
    for number, arrived in house.arrived.items():
        assert arrived - began >= delays[number] - timedelta(milliseconds=10)


async def test_however_many_delay_at_a_time_what_they_need_is_declared_once(
    new_app: NewApp, name: str, way: DelayStrategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = House(new_app(), name, way)
    declare_now, calls = house.app.declare_now, 0

    async def counted(*items: Declarable) -> None:
        nonlocal calls
        calls += 1
        await declare_now(*items)

    monkeypatch.setattr(house.app, "declare_now", counted)
    async with house.app:
        delays = [timedelta(milliseconds=100)] * 100
        await asyncio.gather(*(house.delay.after(house.switch(number=n), d) for n, d in enumerate(delays)))
        await house.has(100)
    assert calls == 2  # What the class reaches, and the way to it.


async def test_what_has_no_target_any_more_is_kept(
    new_app: NewApp, amqp_url: str, name: str, way: DelayStrategy
) -> None:
    app = new_app()
    delay = Delay(f"{name}.delay", strategy=way)
    app.include(delay)
    app.declare(Queue(f"{name}.target"))
    async with app:
        with pytest.raises(TopologyMismatch, match="nobody"):
            await delay.after(b"{}", timedelta(milliseconds=100), key=f"{name}.nobody")
        # The way there stands, and its time is longer than what follows takes.
        await delay.after(b"first", timedelta(milliseconds=50), key=f"{name}.target")
        assert (await take_one(amqp_url, f"{name}.target")).body == b"first"
        connection = await aio_pika.connect(amqp_url)
        async with connection:
            await (await connection.channel()).queue_delete(f"{name}.target")
        await delay.after(b"{}", timedelta(milliseconds=300), key=f"{name}.target")
        lost = await take_one(
            amqp_url,
            f"{name}.delay.10x50ms.lost" if isinstance(way, BinaryDelayQueues) else f"{name}.delay.lost",
        )
    assert lost.body == b"{}"
    assert (lost.headers["warren-exchange"], lost.headers["warren-key"]) == ("", f"{name}.target")


async def test_a_constant_delay_is_one_queue(new_app: NewApp, name: str) -> None:
    app = new_app()
    target = Queue(f"{name}.ring")
    waiting = wait_queue(target.name, timedelta(milliseconds=200))
    app.declare(target, waiting)
    async with app:
        began = datetime.now(UTC)
        await app.publish(b"{}", key=waiting.name)
        await take_one(str(app.url), target.name)
        assert datetime.now(UTC) - began >= timedelta(milliseconds=190)


async def test_wrong_use_is_said_before_anything_is_sent(new_app: NewApp, name: str) -> None:
    house = House(new_app(), name, BinaryDelayQueues(unit=UNIT, levels=10))
    with pytest.raises(ConfigError, match="belongs to no App"):
        await Delay().after(b"", timedelta(seconds=1), key="q")
    with pytest.raises(ConfigError, match="whole milliseconds"):
        BinaryDelayQueues(unit=timedelta(microseconds=1500))
    with pytest.raises(ConfigError, match="from 1 to 28"):
        BinaryDelayQueues(levels=29)
    async with house.app:
        with pytest.raises(ConfigError, match="is the longest of BinaryDelayQueues"):
            await house.delay.after(house.switch(number=1), timedelta(minutes=1))
        with pytest.raises(ConfigError, match="needs an address"):
            await house.delay.after(b"", timedelta(seconds=1))
        with pytest.raises(ConfigError, match="too long to be delayed"):
            await house.delay.after(b"", timedelta(seconds=1), key="k" * 240)
        with pytest.raises(ConfigError, match="wildcard"):
            await house.delay.after(b"", timedelta(seconds=1), exchange="e", key="a.*")
        with pytest.raises(ConfigError, match="cannot cancel or list"):
            await house.delay.after(house.switch(number=1), timedelta(seconds=1), cancel_key="k")
        with pytest.raises(ConfigError, match="cannot cancel or list"):
            await house.delay.cancel("k")
