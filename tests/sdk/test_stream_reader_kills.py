"""Processes that read a stream are killed or stand still: the next one goes on without a gap."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sdk.conftest import MakeApp
from tests.support.polling import eventually
from tests.support.worker_host import WorkerChannel
from tests.support.worker_processes import Workers, worker_host
from warren.sdk import App, Delivery

pytestmark = [pytest.mark.processes, pytest.mark.slow]

STORE_EVERY = 5


@pytest.fixture(scope="module")
def host() -> Iterator[Path]:
    with worker_host("warren.sdk", "aio_pika", "tests.sdk.test_stream_reader_kills") as socket:
        yield socket


async def read(worker: WorkerChannel, url: str, stream: str, label: str, wait_at: int) -> None:
    """Read the stream as the one reader `one`, and report each message before it is handled."""
    app = App(url)

    @app.handle(
        bytes,
        stream=stream,
        reader="one",
        offset="first",
        resume=True,
        store_every=STORE_EVERY,
        store_within="1h",
    )
    async def handle(body: bytes, delivery: Delivery) -> None:
        line = f"{label} {delivery.offset}"
        if delivery.offset == wait_at:
            await worker.report_and_wait(line)
        else:
            worker.report(line)

    async with app:
        worker.report(f"{label} ready")
        await asyncio.Event().wait()


def offsets(reports: list[str], label: str) -> list[int]:
    """Return the offsets that a worker has reported."""
    lines = [line.split() for line in reports]
    return [int(offset) for sender, offset in lines if sender == label and offset != "ready"]


async def test_killed_readers_leave_no_gap_and_few_duplicates(
    make_app: MakeApp, amqp_url: str, name: str, host: Path
) -> None:
    writer = make_app()
    kills = (0, 7, 23, 24, 51, 80)

    @writer.handle(bytes, stream=name, reader="one", resume=True, store_every=STORE_EVERY, store_within="1h")
    async def declare(body: bytes) -> None:
        raise AssertionError("it is paused")

    async with writer, Workers(host) as workers:
        await writer.subscriptions[f"{name}.one"].cancel()
        for number in range(100):
            await writer.publish(b"%d" % number, exchange="", key=name)
        for turn, last in enumerate(kills):
            worker = await workers.start(read, url=amqp_url, stream=name, label=str(turn), wait_at=last)
            await workers.wait_for(f"{turn} {last}")
            worker.kill()
        await workers.start(read, url=amqp_url, stream=name, label="end", wait_at=99)
        await workers.wait_for("end 99")
    begun = 0
    for label, last in [*((str(turn), last) for turn, last in enumerate(kills)), ("end", 99)]:
        seen = offsets(workers.reports, label)
        assert seen == list(range(seen[0], last + 1)), "a reader reads in order and without a gap"
        assert begun - STORE_EVERY <= seen[0] <= begun, (
            "it begins again at most so many messages before the kill"
        )
        begun = last + 1


async def test_a_reader_that_stood_still_cannot_take_the_position_back(
    make_app: MakeApp, amqp_url: str, name: str, host: Path
) -> None:
    writer = make_app()

    @writer.handle(bytes, stream=name, reader="one", resume=True, store_every=STORE_EVERY, store_within="1h")
    async def declare(body: bytes) -> None:
        raise AssertionError("it is paused")

    url = f"{amqp_url}?heartbeat=1"
    async with writer, Workers(host) as workers:
        await writer.subscriptions[f"{name}.one"].cancel()
        for number in range(50):
            await writer.publish(b"%d" % number, exchange="", key=name)
        stalled = await workers.start(read, url=url, stream=name, label="a", wait_at=12)
        await workers.wait_for("a 12")
        os.kill(stalled.pid, signal.SIGSTOP)
        following = await workers.start(read, url=url, stream=name, label="b", wait_at=49)
        await workers.wait_for("b 49")
        stalled.resume()
        os.kill(stalled.pid, signal.SIGCONT)
        following.kill()
        await writer.publish(b"50", exchange="", key=name)
        await eventually(
            lambda: 50 in offsets(workers.reports, "a"), "the former reader is the active one again"
        )
    first, former = offsets(workers.reports, "b"), offsets(workers.reports, "a")
    assert first == list(range(first[0], 50))
    assert 10 <= first[0] <= 12, "the position was stored after each five messages"
    old = [offset for offset in former if offset < 50 - STORE_EVERY]
    assert len(old) == len(set(old)), "the stored position did not go back"
