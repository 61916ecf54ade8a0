"""Timers of a process that is killed: another one publishes each time."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.patterns.conftest import NewApp
from tests.patterns.timer_kills import Fleet, Ticks
from tests.support.worker_processes import Workers, worker_host


@pytest.fixture
async def workers() -> AsyncIterator[Workers]:
    with worker_host("warren.patterns", "warren.sdk", "aio_pika", "tests.patterns.timer_kills") as socket:
        async with Workers(socket) as workers:
            yield workers


@pytest.mark.processes
async def test_no_time_is_lost_when_the_leader_is_killed(
    amqp_url: str, new_app: NewApp, name: str, workers: Workers, tmp_path: Path
) -> None:
    ticks = Ticks(new_app(), name)
    fleet = Fleet(workers, amqp_url, name, str(tmp_path / "timers.sqlite"), interval=0.05, lease=2.0)
    async with ticks.app:
        await fleet.start_process()
        await fleet.start_process()
        await ticks.arrive(3)
        await fleet.kill_leader()
        await ticks.arrive(3)
        await ticks.assert_complete(50, int(time.time() * 1000))
