"""A client that is not ours, to look at what is on the wire and to do what the SDK would not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage
from aiormq import spec


class Foreign:
    """One channel of aio-pika on the broker under test."""

    def __init__(self, channel: AbstractChannel) -> None:
        self.channel = channel

    async def take(self, queue: str, seconds: float = 60.0) -> AbstractIncomingMessage:
        """The next message of the queue, acknowledged."""
        source = await self.channel.get_queue(queue)
        async with asyncio.timeout(seconds):
            while (message := await source.get(fail=False)) is None:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await message.ack()
        return message

    async def count(self, queue: str) -> int:
        """How many messages are ready in the queue."""
        return (await self._declared(queue)).message_count or 0

    async def drain(self, queue: str) -> list[bytes]:
        """The bodies of all that is ready, acknowledged."""
        source = await self.channel.get_queue(queue)
        bodies = []
        while (message := await source.get(fail=False)) is not None:
            bodies.append(message.body)
            await message.ack()
        return bodies

    async def holds(self, queue: str, count: int, seconds: float = 60.0) -> None:
        """Wait until so many messages are ready in the queue.

        RabbitMQ's queue answers this question before it looks at what was settled or
        requeued, so that an answer may be a moment old.
        """
        found = await self.count(queue)
        end = asyncio.get_running_loop().time() + seconds
        while found != count and asyncio.get_running_loop().time() < end:
            await asyncio.sleep(0.01)
            found = await self.count(queue)
        assert found == count, f"{found} messages are ready in {queue!r}"

    async def has_consumers(self, queue: str, count: int, seconds: float = 60.0) -> None:
        """Wait until the queue has so many: that of a lost connection goes when its messages are ready again, no sooner.

        It has to be said twice: RabbitMQ says 0 as well of a quorum queue that has not answered in time.
        """
        said = 0
        async with asyncio.timeout(seconds):
            while said < 2:
                said = said + 1 if (await self._declared(queue)).consumer_count == count else 0
                await asyncio.sleep(0.01)

    async def _declared(self, queue: str) -> spec.Queue.DeclareOk:
        return (await self.channel.declare_queue(queue, passive=True)).declaration_result

    async def put(self, queue: str, body: bytes, **properties: object) -> None:
        message = aio_pika.Message(body, **properties)  # type: ignore[arg-type]
        await self.channel.default_exchange.publish(message, queue)


@asynccontextmanager
async def foreign_client(url: str) -> AsyncIterator[Foreign]:
    connection = await aio_pika.connect(url)
    async with connection:
        yield Foreign(await connection.channel())
