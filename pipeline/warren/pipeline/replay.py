"""Reads a stream between two offsets, as often as asked: consumes from one on, acknowledges to make room, and stops.

Nothing is taken away. Memory is bounded by the batch: no more is outstanding than the prefetch limit, and what is delivered
is acknowledged when the next batch is asked for (RabbitMQ delivers whole chunks, somewhat more than the limit).

AMQP has no way to ask a stream for its offsets. Where it begins, and where a time leads, is told by the first delivery from
there; where it ends, by the last chunk, which comes whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeAlias

import aiormq
from aiormq.abc import AbstractChannel, AbstractConnection, DeliveredMessage
from pamqp.commands import Basic

from warren.pipeline.browse import (
    BATCH_BYTES,
    BATCH_MESSAGES,
    CLOSE,
    check_url,
    explained,
    redacted,
    with_heartbeat,
)
from warren.pipeline.errors import PipelineError

Start: TypeAlias = int | str | datetime
"""An offset, `first`, `last`, or a time."""

OFFSET = "x-stream-offset"
QUIET = 0.3
"""Seconds without a delivery after which the last chunk has come whole. Had it not, the rest were for the next read."""
EMPTY = 1.0
"""Seconds after which a stream that counts no message is taken for empty: RabbitMQ counts every few seconds."""
LATE = 5.0
"""Seconds after which no message is taken to be as young as a time."""


@dataclass(frozen=True)
class Replay:
    """What to read: a stream of the broker behind a URL.

    :param timeout: seconds without any progress after which reading fails
    :raises PipelineError: if one of them cannot be meant
    """

    url: str = field(repr=False)
    stream: str
    timeout: float = 30.0

    def __post_init__(self) -> None:
        check_url(self.url)
        if not self.stream:
            raise PipelineError("no stream is named")
        if not self.timeout > 0:
            raise PipelineError(f"timeout is {self.timeout:g}: it must be more than 0 seconds")

    def end(self) -> int:
        """The offset behind the last message, 0 if there has never been one.

        :raises PipelineError: the stream cannot be read
        """
        with asyncio.Runner() as runner:
            return runner.run(self._end())

    async def _end(self) -> int:
        async with Reading(self, "last", BATCH_MESSAGES) as reading:
            while await reading.arrives():
                reading.take()
            return reading.last + 1

    def find(self, start: Start) -> int | None:
        """The offset of the first message from there on; None if there is none yet.

        :raises PipelineError: the stream cannot be read
        """

        async def first() -> int | None:
            async with Reading(self, start, 1) as reading:
                return offset_of(reading.take()[0]) if await reading.arrives() else None

        with asyncio.Runner() as runner:
            return runner.run(first())

    def batches(self, start: int, stop: int, whole: bool = True) -> Iterator[list[DeliveredMessage]]:
        """The messages from one offset to before another, in lists of about 4,096 messages or 4 MiB.

        :param whole: fail if retention has removed the first of them
        :raises PipelineError: the stream cannot be read, or not all of it is there any more
        """
        if start >= stop:
            return
        with asyncio.Runner() as runner:
            reading = Reading(self, start, BATCH_MESSAGES)
            try:
                runner.run(reading.open())
                following = start
                while following < stop:
                    found = runner.run(reading.fill(stop))
                    if whole and following == start and offset_of(found[0]) > start:
                        self._assert_whole(start)
                    following = offset_of(found[-1]) + 1
                    if kept := [message for message in found if offset_of(message) < stop]:
                        yield kept
            finally:
                runner.run(reading.close())

    def _assert_whole(self, start: int) -> None:
        # A gap is no loss by itself: RabbitMQ gives offsets to records of its own.
        first = self.find("first")
        if first is None or first > start:
            raise self.error(
                f"messages from offset {start} on are gone, it begins at {first}: retention has removed them; "
                "read from there on, or set failOnDataLoss to false"
            )

    def error(self, reason: str) -> PipelineError:
        return PipelineError(f"cannot read stream {self.stream!r} at {redacted(self.url)}: {reason}")


class Reading:
    """One connection that consumes one stream from somewhere on."""

    def __init__(self, replay: Replay, start: Start, prefetch: int) -> None:
        self._replay = replay
        self._start = start
        self._prefetch = prefetch
        self._connection: AbstractConnection | None = None
        self._channel: AbstractChannel | None = None
        self._counted = 0
        self._arrived: list[DeliveredMessage] = []
        self._bytes = 0
        self._lost: Exception | None = None
        self._wake = asyncio.Event()
        self._tag = 0
        self.last = -1
        """The highest offset that has been taken."""

    async def __aenter__(self) -> Reading:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Connect, and start the deliveries."""
        replay = self._replay
        try:
            async with asyncio.timeout(replay.timeout):
                self._connection = await aiormq.connect(with_heartbeat(replay.url))
                channel = await self._connection.channel(publisher_confirms=False)
                declared = await channel.queue_declare(replay.stream, passive=True)
                self._counted = declared.message_count or 0
                await channel.basic_qos(prefetch_count=self._prefetch)
                channel.on_consumer_cancel_callbacks.add(self._on_cancel)
                self._channel = channel
                channel.closing.add_done_callback(self._on_closed)
                await channel.basic_consume(replay.stream, self._on_message, arguments={OFFSET: self._start})
        except TimeoutError:
            raise replay.error(f"the broker does not answer (waited {replay.timeout:g} s)") from None
        except Exception as error:
            raise replay.error(explained(error)) from None

    async def arrives(self) -> bool:
        """Whether a message is there, or comes before long."""
        # At a time there may be none; of a stream that counts some, the first and the last are there.
        sure = self.last < 0 and self._counted > 0 and self._start in ("first", "last")
        if sure:
            limit = self._replay.timeout
        elif self.last >= 0:
            limit = QUIET
        else:
            limit = LATE if self._counted else EMPTY
        if await self._wait(lambda: bool(self._arrived), limit):
            return True
        if sure:
            raise self._replay.error(f"nothing arrived for {limit:g} s")
        return False

    def take(self) -> list[DeliveredMessage]:
        """What has arrived."""
        taken, self._arrived, self._bytes = self._arrived, [], 0
        self._wake.clear()
        self._tag = taken[-1].delivery_tag or 0
        self.last = max(self.last, offset_of(taken[-1]))
        return taken

    async def fill(self, stop: int) -> list[DeliveredMessage]:
        """The next batch, at least a message; what was taken before is acknowledged."""
        assert self._channel is not None
        if self._tag:
            await self._channel.basic_ack(self._tag, multiple=True)
            self._tag = 0

        def full() -> bool:
            arrived = self._arrived
            return bool(arrived) and (
                len(arrived) >= BATCH_MESSAGES // 2
                or self._bytes >= BATCH_BYTES
                or offset_of(arrived[-1]) + 1 >= stop
            )

        if not await self._wait(full, self._replay.timeout) and not self._arrived:
            at = f"at offset {self.last + 1}" if self.last >= 0 else "yet"
            raise self._replay.error(f"nothing arrived for {self._replay.timeout:g} s, {at}")
        return self.take()

    async def _wait(self, done: Callable[[], bool], limit: float) -> bool:
        """Wait for a condition as long as messages arrive; False if none has for so many seconds."""
        while not done():
            if self._lost is not None:
                raise self._replay.error(f"the connection was lost: {explained(self._lost)}")
            self._wake.clear()
            try:
                async with asyncio.timeout(limit):
                    await self._wake.wait()
            except TimeoutError:
                return False
        return True

    async def close(self) -> None:
        """End the connection. Never raises: there is nothing to give back."""
        if self._connection is not None:
            with suppress(Exception):
                async with asyncio.timeout(CLOSE):
                    await self._connection.close()

    async def _on_message(self, message: DeliveredMessage) -> None:
        self._arrived.append(message)
        self._bytes += len(message.body)
        self._wake.set()

    def _on_cancel(self, _: Basic.Cancel) -> None:
        self._fail(PipelineError("the stream was deleted"))

    def _on_closed(self, closing: asyncio.Future[object]) -> None:
        error = None if closing.cancelled() else closing.exception()
        self._fail(error if isinstance(error, Exception) else ConnectionError("closed"))

    def _fail(self, error: Exception) -> None:
        self._lost = self._lost or error
        self._wake.set()


def offset_of(message: DeliveredMessage) -> int:
    headers = message.header.properties.headers or {}
    offset = headers.get(OFFSET)
    if not isinstance(offset, int):
        raise PipelineError(
            "the queue is no stream: its messages have no offset; browse it with the option 'queue'"
        )
    return offset
