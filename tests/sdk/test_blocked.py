"""A broker that is low on disk: the App reports it, and no publish waits beyond its deadline."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support.broker_process import PATIENT, BrokerProcess
from tests.support.polling import eventually
from warren.sdk import App, PublishTimeout, Queue, State


@pytest.mark.processes
async def test_a_blocked_publish_fails_with_the_reason_and_consumers_go_on(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "broker", "--disk-free-limit", "1000000GB", *PATIENT)
    await asyncio.to_thread(broker.start)
    try:
        app = App(broker.url, grace=0.1)
        handled: list[bytes] = []

        @app.handle(bytes, queue=Queue("q"))
        async def take(body: bytes) -> None:
            handled.append(body)

        async with app:
            assert app.state is State.READY
            # The broker hears of a publisher by its first message, and reads no second one.
            await app.publish(b"1", key="q")
            await eventually(lambda: app.state is State.BLOCKED, "the state says it")
            assert not app.ready
            with pytest.raises(PublishTimeout, match=r"the broker blocks publishers \(low on disk\)") as kept:
                await app.publish(b"2", key="q", timeout=0.1)
            await eventually(lambda: len(handled) == 1, "the consumer goes on")
            assert (kept.value.outcome, kept.value.retryable) == ("not_sent", True)
    finally:
        await asyncio.to_thread(broker.stop)
