"""Taking one message from a queue over the wire, with a client that is not ours."""

from __future__ import annotations

import aio_pika
from aio_pika.abc import AbstractIncomingMessage

from tests.patterns.waiting import eventually


async def fetch(url: str, queue: str) -> AbstractIncomingMessage:
    """Wait for the next message of `queue` and acknowledge it."""
    found: list[AbstractIncomingMessage] = []
    connection = await aio_pika.connect(url)
    async with connection:
        source = await (await connection.channel()).get_queue(queue)

        async def arrived() -> bool:
            message = await source.get(fail=False)
            if message is not None:
                await message.ack()
                found.append(message)
            return bool(found)

        await eventually(arrived, f"a message is in {queue}")
    return found[0]
