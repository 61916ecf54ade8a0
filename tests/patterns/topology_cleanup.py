"""Delete the topology that a test declared: the broker is shared, and each quorum queue costs it files."""

from __future__ import annotations

import aio_pika

from tests.support.deletion import delete_exchange, delete_queue
from warren.sdk import App, Exchange, Queue


async def delete_topology(url: str, apps: list[App], prefix: str) -> None:
    """Delete the queues and exchanges that the Apps declared and whose names begin with `prefix`."""
    declared = [item for app in apps for item in app.topology]
    names = {(type(item), item.name) for item in declared if isinstance(item, Queue | Exchange)}
    connection = await aio_pika.connect(url)
    async with connection:
        channel = await connection.channel()
        for kind, name in names:
            if name.startswith(prefix):
                await (delete_queue if kind is Queue else delete_exchange)(channel, name)
