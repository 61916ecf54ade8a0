"""Names of queues and exchanges: all that a broker allows, also those that the client library below the SDK refuses."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from tests.patterns.conftest import NewApp
from tests.support.polling import eventually
from warren.patterns import DeadLetterSelection, ParkingLot, replay
from warren.sdk import Binding, DeadLetter, Delivery, Exchange, Queue, RetryLater

ODD = ("größe", "jobs[eu]", "tag:example.org;2026", "that.queue.*", "it's", 'say "hi"', "a\tb", "100%?")


@pytest.mark.parametrize("odd", ODD)
async def test_a_name_that_brokers_allow_works_everywhere(
    new_app: NewApp, amqp_url: str, name: str, odd: str
) -> None:
    """Declare, bind, consume, delay, dead-letter, browse and replay."""
    queue = f"{name}.{odd}"
    app = new_app()
    source, target = Exchange(f"{name}.from.{odd}", type="fanout"), Exchange(f"{name}.to.{odd}", type="topic")
    app.declare(source, target, Queue(queue))
    app.declare(Binding(source.name, target.name, to_exchange=True))
    app.declare(Binding(target.name, queue, "#"))
    handled: list[int] = []
    dead = asyncio.Event()

    @app.handle(dict, queue=queue)
    async def handle(message: dict[str, int], delivery: Delivery) -> None:
        number = message["number"]
        if number == 1 and delivery.attempt == 1:
            raise RetryLater(timedelta(milliseconds=50))
        if number == 2 and not dead.is_set():
            dead.set()
            raise DeadLetter("no use")
        handled.append(number)

    async with app:
        for number in range(3):
            await app.publish({"number": number}, exchange=source.name, key=odd)
        await eventually(lambda: sorted(handled) == [0, 1], "two messages are handled")
        async with ParkingLot(amqp_url, f"{queue}.dead") as lot:
            assert (await replay(lot, app, DeadLetterSelection(queue=queue, key=odd))).done == 1
        await eventually(lambda: sorted(handled) == [0, 1, 2], "all messages are handled")
        fetched = await app.get(f"{queue}.dead")
        assert fetched is None
