"""Stopping an App while the broker's disk does not answer: work in flight is finished or goes back, and is never lost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.frozen_files import FrozenFiles, broker_on
from tests.support.in_process_broker import InProcessBroker
from tests.support.polling import eventually
from warren.sdk import App, Command


class Order(Command, queue="orders"):
    number: int


@pytest.fixture
def files() -> FrozenFiles:
    return FrozenFiles()


@pytest.fixture
def broker(tmp_path: Path, files: FrozenFiles) -> Iterator[InProcessBroker]:
    with broker_on(files, tmp_path / "data") as broker:
        yield broker


async def handled(app: App, files: FrozenFiles) -> list[int]:
    """Start the App, and return when its handler publishes on a frozen disk; the list gets the orders that it finishes."""
    started, frozen, publishes = asyncio.Event(), asyncio.Event(), asyncio.Event()
    done: list[int] = []

    @app.handle(Order, concurrency=1)
    async def handle(order: Order) -> None:
        started.set()
        await frozen.wait()
        publishes.set()
        await app.publish(b"effect", key="orders.dead")
        done.append(order.number)

    await app.start()
    await app.publish(Order(number=1))
    await started.wait()
    files.thawed.clear()
    frozen.set()
    await publishes.wait()
    return done


async def test_a_handler_whose_confirm_comes_in_time_is_finished(
    broker: InProcessBroker, files: FrozenFiles
) -> None:
    app = App(broker.url)
    done = await handled(app, files)
    stopping = asyncio.create_task(app.stop())
    await eventually(lambda: app.state.value == "closing", "it stops")
    assert not stopping.done()
    files.thawed.set()
    await stopping
    assert done == [1]
    async with App(broker.url) as later:
        assert await later.get("orders") is None
        effect = await later.get("orders.dead")
        assert effect is not None
        await effect.ack()


async def test_a_handler_whose_confirm_does_not_come_gives_its_message_back(
    broker: InProcessBroker, files: FrozenFiles
) -> None:
    app = App(broker.url, grace=0.1)
    done = await handled(app, files)
    await app.stop()
    assert done == []
    files.thawed.set()
    async with App(broker.url) as later:
        order = await later.get("orders")
        assert order is not None
        assert order.redelivered
        await order.ack()
