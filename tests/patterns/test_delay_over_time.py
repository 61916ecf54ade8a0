"""Delays of hours and years on a virtual clock, and the patterns on a broker that refuses what RabbitMQ 4.3 refuses."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.broker_process import BrokerProcess
from warren.patterns import (
    Cancellation,
    CatchAll,
    Delay,
    DelayedExchange,
    DelayLadder,
    DelayStrategy,
    Immediate,
    SqliteStore,
    WorkQueue,
    backoff,
)
from warren.sdk import App, Command, Message, Retry
from warren.testing import Warren


class Switch(Command, queue="lamp"):
    name: str


@pytest.mark.parametrize("strategy", [None, DelayedExchange()], ids=["levels", "native"])
async def test_delays_of_seconds_to_years_end_within_a_second_of_their_time(
    warren: Warren, strategy: DelayStrategy | None
) -> None:
    app, delay = App(), Delay(strategy=strategy)
    app.include(delay)
    arrived: dict[str, timedelta] = {}

    @app.handle(Switch)
    async def lamp(switch: Switch) -> None:
        arrived[switch.name] = datetime.fromtimestamp(app.clock.now(), UTC) - began

    delays = [timedelta(seconds=1), timedelta(seconds=61), timedelta(hours=7, seconds=3), timedelta(days=40)]
    if strategy is None:
        delays.append(timedelta(days=3 * 365, seconds=5))
    async with warren.running(app):
        began = datetime.fromtimestamp(app.clock.now(), UTC)
        for after in reversed(delays):
            await delay.after(Switch(name=str(after)), after)
        await warren.advance(max(delays))
        await warren.advance(seconds=1)
    assert list(arrived) == [str(after) for after in delays]
    for after in delays:
        assert after <= arrived[str(after)] < after + timedelta(seconds=1)


async def test_cancelled_reminders_of_a_day_are_not_delivered(warren: Warren, tmp_path: Path) -> None:
    app, delay = App(), Delay(store=SqliteStore(tmp_path / "delays.sqlite"))
    app.include(delay)

    @app.handle(Switch)
    async def lamp(switch: Switch) -> None: ...

    async with warren.running(app):
        for hour in range(1, 25):
            await delay.after(Switch(name=f"{hour}"), timedelta(hours=hour), cancel_key=f"{hour}")
        await warren.advance(hours=12)
        assert len([one async for one in delay.delayed()]) == 12
        for hour in range(2, 25, 2):
            expected = Cancellation.TOO_LATE if hour <= 12 else Cancellation.CANCELLED
            assert await delay.cancel(f"{hour}") is expected
        await warren.advance(hours=12)
        assert [one async for one in delay.delayed()] == []
    assert [int(switch.name) for switch in warren.handled(Switch)] == [*range(1, 13), *range(13, 25, 2)]
    assert warren.dead_letters == []


async def test_a_message_whose_retries_take_days_is_dead_lettered_at_the_end(warren: Warren) -> None:
    app = App(delay=Delay())
    attempts: list[float] = []

    @app.handle(Switch, retry=Retry(1).then(*backoff("1h", factor=4, times=4, longest="1d")))
    async def lamp(switch: Switch) -> None:
        attempts.append(app.clock.now())
        raise ConnectionError("there is no electricity")

    async with warren.running(app):
        await warren.publish(Switch(name="on"))
        await warren.advance(days=3)
    hours = [round((later - earlier) / 3600) for earlier, later in pairwise(attempts)]
    assert hours == [1, 4, 16, 24]
    assert len(warren.dead_letters) == 1


@pytest.mark.processes
async def test_all_delay_and_queue_patterns_run_on_a_strict_broker(tmp_path: Path) -> None:
    class Ring(Message):
        number: int

    with BrokerProcess(tmp_path / "broker", "--strict") as broker:
        app = App(broker.url)
        delay, ladder = Delay(store=SqliteStore(tmp_path / "delays.sqlite")), DelayLadder("steps", "1s")
        work, bell, orders = WorkQueue("work"), Immediate("bell", timeout=60), CatchAll("orders")
        for pattern in (delay, ladder, work, bell, orders):
            app.include(pattern)
        handled: list[int] = []

        @app.handle(Switch, retry=Retry(1).then("1s"))
        async def lamp(switch: Switch) -> None: ...

        @work.handle(Ring)
        async def on_work(message: Ring) -> None: ...

        @bell.handle(Ring)
        async def on_immediate(message: Ring) -> None:
            handled.append(message.number)

        async with app:
            await delay.after(Switch(name="on"), timedelta(hours=1), cancel_key="k")
            await ladder.publish(Ring(number=1), "1s")
            await work.put(Ring(number=2), priority=1)
            await bell.publish(Ring(number=3))
            await app.publish(b"", exchange="orders", key="nobody")
    assert handled == [3]
