"""Stall monitor: which turns of the event loop are counted and logged, and with what cause."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from pathlib import Path

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.frames import publish_frames
from tests.support.operator_cli import Operator, warren_ctl
from tests.support.polling import wait_until
from tests.support.raw_client import RawClient
from warren.broker.broker import Broker
from warren.broker.configuration.config import BrokerConfig
from warren.broker.connection.event_loop import new_event_loop

LOGGER = "warren.broker.stall_monitor"


def spin(seconds: float) -> None:
    """Use the processor for a while, whatever else runs on the machine."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


async def stalled(broker: Broker) -> int:
    """Keep the event loop busy until a turn has counted as a stall, and return the number of stalls."""
    monitor = broker._stall_monitor
    assert monitor is not None
    while not monitor.stalls:
        spin(0.02)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    return monitor.stalls


def test_a_turn_that_takes_too_long_is_counted_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> list[str]:
        async with Broker(BrokerConfig(data_dir=tmp_path, stall_threshold=1)) as broker:
            await stalled(broker)
            operator = Operator(warren_ctl(tmp_path), broker.url, is_warren=True)
            return await asyncio.to_thread(operator, "status")

    with caplog.at_level(logging.WARNING, LOGGER), asyncio.Runner(loop_factory=new_event_loop) as runner:
        status = [line.strip() for line in runner.run(run())]
    figures = dict(line.split(": ", 1) for line in status if ": " in line)
    assert int(figures["Stalls"]) >= 1
    assert int(figures["Stalled (ms)"]) >= int(figures["Longest stall (ms)"]) >= 1
    assert int(figures["Longest turn (ms)"]) >= int(figures["Longest stall (ms)"])
    assert "event=broker.loop_stalled ms=" in caplog.text
    assert "cpu_ms=" in caplog.text


def test_nothing_is_counted_without_a_threshold(tmp_path: Path) -> None:
    async def run() -> int:
        async with Broker(BrokerConfig(data_dir=tmp_path)) as broker:
            monitor = broker._stall_monitor
            assert monitor is not None
            while monitor.longest_turn < 0.02:
                spin(0.02)
                await asyncio.sleep(0)
            return monitor.stalls

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        assert runner.run(run()) == 0


@pytest.mark.processes
def test_the_log_names_the_method_and_the_client(tmp_path: Path) -> None:
    with (
        BrokerProcess(tmp_path, "--stall-threshold", "1") as broker,
        RawClient(broker.url).connect().open() as client,
    ):
        client.declare_queue("last", arguments={"x-max-length": 1})
        # The first stall that is logged may be another one; the next is logged ten seconds later.
        wait_until(lambda: named(broker, client), "a stall is logged with its method", timeout=200)


def named(broker: BrokerProcess, client: RawClient) -> bool:
    """Publish much at a time, and return whether a stall was logged that names the client's method."""
    # No other method may be in the same input: the log names one of them.
    client.send_bytes(publish_frames(1, "", "last", b"x" * 64) * 10_000)
    assert broker.child is not None
    return "basic.publish from <connection." in broker.child.errors


@pytest.mark.slow
def test_a_process_that_was_stopped_has_not_stalled(tmp_path: Path) -> None:
    with (
        BrokerProcess(tmp_path, "--stall-threshold", "1000") as broker,
        RawClient(broker.url).connect().open() as client,
    ):
        assert broker.child is not None
        child = broker.child
        # An idle loop is in no turn; it may take several attempts to stop it in the middle of one.
        while "event=broker.process_suspended ms=" not in child.errors:
            client.send_bytes(publish_frames(1, "", "nowhere", b"x" * 64) * 10_000)
            os.kill(broker.pid, signal.SIGSTOP)
            # The time for which it does not run is what is tested. The monitor's thread looks twice a second, and may
            # have looked before the stop and after it in the same turn: that must be little of this time.
            time.sleep(4)
            os.kill(broker.pid, signal.SIGCONT)
            client.sync()
        assert "event=broker.loop_stalled" not in child.errors
        assert "Stalls: 0" in [line.strip() for line in warren_ctl(tmp_path)("-q", "status").lines]
