"""Memory of a subscription: it does not grow with the number of handled messages."""

from __future__ import annotations

import asyncio
import tracemalloc

from tests.sdk.conftest import MakeApp
from tests.support.polling import eventually
from warren.sdk import Queue
from warren.sdk.transport import data_channel

MESSAGES = 3000


async def test_settled_messages_are_not_kept_while_another_is_handled(make_app: MakeApp, name: str) -> None:
    app = make_app()
    finish = asyncio.Event()

    @app.handle(bytes, queue=Queue(name, type="classic"), concurrency=2)
    async def take(body: bytes) -> None:
        if body == b"long":
            await finish.wait()

    async with app:
        await app.publish(b"long", key=name)
        statistics = app.subscriptions[name].statistics
        await eventually(lambda: statistics.running == 1, "it runs")
        tracemalloc.start()
        try:
            await app.publish_many([b""] * MESSAGES, key=name)
            await eventually(lambda: statistics.acknowledged == MESSAGES, "the others are handled")
            snapshot = tracemalloc.take_snapshot()
        finally:
            tracemalloc.stop()
        held = snapshot.filter_traces([tracemalloc.Filter(True, data_channel.__file__)])
        finish.set()
        await eventually(lambda: statistics.acknowledged == MESSAGES + 1, "it is handled as well")
    assert sum(trace.size for trace in held.traces) < 32 * 1024
