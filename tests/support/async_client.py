"""Asyncio test client: aio-pika with the few operations that tests need, to check and do what the SDK would not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage
from aiormq import spec

from tests.support.polling import PATIENCE


class AsyncClient:
    """A channel of aio-pika on the broker under test.

    :ivar channel: aio-pika's channel, for all other operations.
    """

    def __init__(self, channel: AbstractChannel) -> None:
        self.channel = channel

    async def take(self, queue: str, seconds: float = PATIENCE) -> AbstractIncomingMessage:
        """Wait for the next message of the queue, acknowledge and return it.

        :raises TimeoutError: if none arrives within `seconds`
        """
        source = await self.channel.get_queue(queue)
        async with asyncio.timeout(seconds):
            while (message := await source.get(fail=False)) is None:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await message.ack()
        return message

    async def count(self, queue: str) -> int:
        """Return how many messages are ready in the queue."""
        return (await self._declare_passively(queue)).message_count or 0

    async def drain(self, queue: str) -> list[bytes]:
        """Acknowledge all messages that are ready; return their bodies."""
        source = await self.channel.get_queue(queue)
        bodies = []
        while (message := await source.get(fail=False)) is not None:
            bodies.append(message.body)
            await message.ack()
        return bodies

    async def holds(self, queue: str, count: int, seconds: float = PATIENCE) -> None:
        """Wait until this number of messages is ready in the queue.

        RabbitMQ's queue answers before it processes earlier settlements and requeues, so that its answer may be outdated.
        """
        found = await self.count(queue)
        end = asyncio.get_running_loop().time() + seconds
        while found != count and asyncio.get_running_loop().time() < end:
            await asyncio.sleep(0.01)
            found = await self.count(queue)
        assert found == count, f"{found} messages are ready in {queue!r}"

    async def has_consumers(self, queue: str, count: int, seconds: float = PATIENCE) -> None:
        """Wait until the queue has this number of consumers.

        The consumer of a lost connection disappears when its messages are ready again, not before. Two answers in a row must
        agree, and twelve for none: RabbitMQ answers 0 also for a quorum queue that does not respond within 0.25 s.
        """
        agreeing = 0
        async with asyncio.timeout(seconds):
            while agreeing < (2 if count else 12):
                consumers = (await self._declare_passively(queue)).consumer_count
                agreeing = agreeing + 1 if consumers == count else 0
                await asyncio.sleep(0.01)

    async def put(self, queue: str, body: bytes, **properties: object) -> None:
        """Publish to a queue through the default exchange; `properties` are those of `aio_pika.Message`."""
        message = aio_pika.Message(body, **properties)  # type: ignore[arg-type]
        await self.channel.default_exchange.publish(message, queue)

    async def _declare_passively(self, queue: str) -> spec.Queue.DeclareOk:
        return (await self.channel.declare_queue(queue, passive=True)).declaration_result


@asynccontextmanager
async def async_client(url: str) -> AsyncIterator[AsyncClient]:
    """Connect a client for as long as the block lasts."""
    connection = await aio_pika.connect(url)
    async with connection:
        yield AsyncClient(await connection.channel())


async def take_one(url: str, queue: str) -> AbstractIncomingMessage:
    """Wait for the next message of the queue, acknowledge and return it, on a connection of its own."""
    async with async_client(url) as client:
        return await client.take(queue)
