"""Message priorities."""

from __future__ import annotations

import pytest

from tests.sdk.conftest import MakeApp
from tests.support.async_client import AsyncClient
from warren.sdk import ConfigError, Queue


async def test_messages_with_higher_priority_overtake_others(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    app = make_app()
    app.declare(Queue(name, max_priority=10))
    async with app:
        for priority in (None, 5, 0, 99):
            await app.publish(str(priority), key=name, priority=priority)
        with pytest.raises(ConfigError, match="from 0 to 255"):
            await app.publish(b"", key=name, priority=256)
        taken = [await amqp_client.take(name) for _ in range(4)]
    assert [(message.body, message.priority) for message in taken] == [
        (b"99", 99),
        (b"5", 5),
        (b"None", 0),
        (b"0", 0),
    ]
