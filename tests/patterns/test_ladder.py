"""The ladder: published by level, handled by level."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from tests.patterns.conftest import NewApp
from tests.support.polling import eventually
from warren.patterns import DelayLadder
from warren.sdk import ConfigError, Message


class Remind(Message):
    number: int


async def test_each_message_arrives_in_the_queue_of_its_step_after_its_delay(
    new_app: NewApp, name: str
) -> None:
    app, ladder = new_app(), DelayLadder(name, "200ms", "600ms", timedelta(milliseconds=1200))
    app.include(ladder)
    arrived: list[tuple[str, int, timedelta]] = []
    began = datetime.now(UTC)

    def handles(step: str | timedelta) -> None:
        @app.handle(Remind, queue=ladder.queue(step))
        async def remind(message: Remind) -> None:
            arrived.append((ladder.queue(step).name, message.number, datetime.now(UTC) - began))

    for step in ladder.steps:
        handles(step)
    async with app:
        steps = ((1, "1200ms"), (2, "600ms"), (3, "200ms"))
        await asyncio.gather(*(ladder.publish(Remind(number=number), label) for number, label in steps))
        await eventually(lambda: len(arrived) == 3, "all arrive")
    arrived.sort(key=lambda each: -each[1])
    assert [(queue, number) for queue, number, _ in arrived] == [
        (f"{name}.200ms", 3),
        (f"{name}.600ms", 2),
        (f"{name}.1200ms", 1),
    ]
    for (_, _, after), step in zip(arrived, ladder.steps, strict=True):
        assert after >= step - timedelta(milliseconds=10)


async def test_invalid_arguments_raise_config_errors(name: str) -> None:
    assert DelayLadder(name, timedelta(microseconds=1500)).queue("2ms").name == f"{name}.2ms"
    assert [step.total_seconds() for step in DelayLadder(name).steps] == [5, 10, 30, 60, 300, 600, 1800, 3600]
    with pytest.raises(ConfigError, match="no step 7s; its steps are 5s, 1m"):
        DelayLadder(name, "5s", "1m").queue("7s")
    with pytest.raises(ConfigError, match="belongs to no App"):
        await DelayLadder(name).publish(Remind(number=1), "5s")
    parts = (
        timedelta(microseconds=1500),
        "2ms",
    )  # A broker counts whole milliseconds: they would share their queues.
    for steps in (("60s", "1m"), ("0s",), parts):
        with pytest.raises(ConfigError, match="must be different and longer than 0"):
            DelayLadder(name, *steps)
