"""uvloop, the event loop of `uvicorn[standard]`: its transports have the methods of asyncio's, but are no subclasses.

`make nightly` runs all tests of the SDK and the patterns on it.
"""

from __future__ import annotations

import asyncio

import pytest

from warren.broker import Broker
from warren.sdk import App, Command, Request

uvloop = pytest.importorskip("uvloop", reason="there is no uvloop for Windows")


class Job(Command, queue="jobs"):
    number: int


class Add(Request[int], queue="sums"):
    numbers: list[int]


async def _handle_and_call() -> tuple[list[int], int]:
    handled: list[int] = []
    all_handled = asyncio.Event()
    async with Broker() as broker:
        app = App(broker.url)

        @app.handle(Job)
        async def work(job: Job) -> None:
            handled.append(job.number)
            if len(handled) == 3:
                all_handled.set()

        @app.handle(Add)
        async def add(request: Add) -> int:
            return sum(request.numbers)

        async with app:
            await app.publish_many([Job(number=number) for number in range(3)])
            async with asyncio.timeout(60):
                await all_handled.wait()
            return sorted(handled), await app.call(Add(numbers=[1, 2, 3]))


def test_an_app_and_the_embedded_broker_work_on_uvloop() -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(_handle_and_call()) == ([0, 1, 2], 6)
