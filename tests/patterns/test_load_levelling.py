"""Load levelling: a spike of a hundred times the usual load waits in the queue, which workers handle at their own pace."""

from __future__ import annotations

import asyncio

import pytest

from tests.patterns.conftest import NewApp
from tests.support.polling import eventually
from warren.sdk import Command


@pytest.mark.slow
async def test_a_spike_waits_in_the_queue_and_is_handled_at_the_pace_of_the_consumers(
    new_app: NewApp, name: str
) -> None:
    class Resize(Command, queue=name):
        number: int

    usual, spike, concurrency = 20, 2000, 4
    pace = asyncio.Semaphore(0)
    worker, publisher = new_app(), new_app()
    done: list[int] = []
    at_once = most_at_once = most_held = 0

    @worker.handle(Resize, concurrency=concurrency)
    async def resize(command: Resize) -> None:
        nonlocal at_once, most_at_once, most_held
        at_once += 1
        most_at_once = max(most_at_once, at_once)
        held = worker.statistics().subscriptions[name]
        most_held = max(most_held, held.running + held.waiting)
        await pace.acquire()
        at_once -= 1
        done.append(command.number)

    def work_off(count: int) -> None:
        for _ in range(count):
            pace.release()

    async with worker, publisher:
        # The usual load: nothing waits.
        await publisher.publish_many([Resize(number=n) for n in range(usual)])
        work_off(usual)
        await eventually(lambda: len(done) == usual, "the usual load is done")
        # All of the spike is accepted while nobody works.
        report = await publisher.publish_many([Resize(number=n) for n in range(spike)])
        assert (report.total, report.failures) == (spike, ())
        await eventually(lambda: at_once == concurrency, "the workers are busy")
        assert len(done) == usual
        # Then it goes at the pace that the workers have, and never faster.
        work_off(100)
        await eventually(lambda: len(done) == usual + 100, "a hundred are done")
        work_off(spike - 100)
        await eventually(lambda: len(done) == usual + spike, "all is done", seconds=120)
    assert sorted(done[usual:]) == list(range(spike))
    assert most_at_once == concurrency
    assert most_held <= 2 * concurrency
