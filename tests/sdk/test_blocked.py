"""A broker that is low on disk: the App reports it, and no publish waits beyond its deadline."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support.broker_process import PATIENT, BrokerProcess
from tests.support.operator_cli import warren_ctl
from tests.support.polling import PATIENCE, eventually
from warren.sdk import App, PublishTimeout, Queue, State


@pytest.mark.processes
async def test_a_blocked_publish_fails_with_the_reason_and_consumers_go_on(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "broker", *PATIENT)
    await asyncio.to_thread(broker.start)
    try:
        app = App(broker.url, grace=0.1)
        handled: list[bytes] = []
        may_end = asyncio.Event()

        @app.handle(bytes, queue=Queue("q"))
        async def take(body: bytes) -> None:
            await may_end.wait()
            handled.append(body)

        async with app:
            assert app.state is State.READY
            await app.publish(b"1", key="q")
            ctl = warren_ctl(tmp_path / "broker")
            assert (await asyncio.to_thread(ctl, "set_disk_free_limit", "1000000GB")).status == 0
            # The broker says so to who publishes, and keeps the message until there is room.
            first = asyncio.create_task(app.publish(b"2", key="q", timeout=PATIENCE))
            await eventually(lambda: app.state is State.BLOCKED, "the state says it")
            assert not app.ready
            with pytest.raises(PublishTimeout, match=r"the broker blocks publishers \(low on disk\)") as kept:
                await app.publish(b"3", key="q", timeout=0.1)
            assert (kept.value.outcome, kept.value.retryable) == ("not_sent", True)
            may_end.set()
            await eventually(lambda: handled == [b"1"], "the consumer goes on")
            assert (await asyncio.to_thread(ctl, "set_disk_free_limit", "0")).status == 0
            await first
            await eventually(lambda: handled == [b"1", b"2"], "the message arrives after the alarm")
    finally:
        await asyncio.to_thread(broker.stop)
