"""`app.get`: one message of a queue, held by whoever asked until it says what becomes of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from functools import partial
from time import perf_counter
from types import TracebackType
from typing import Literal, TypeVar

from warren.sdk.consume.delivery import Delivery
from warren.sdk.errors import ConfigError, TopologyMismatch, TransportUnavailable, Undecodable, WarrenError
from warren.sdk.messages.codec import decode
from warren.sdk.telemetry.consume_spans import ConsumeTelemetry
from warren.sdk.transport.data_channel import DataChannel
from warren.sdk.transport.error_translation import to_sdk_error, translate_errors

Content = TypeVar("Content")

ANSWER_SECONDS = 10.0

PublishDeadLetter = Callable[[Delivery, str], Awaitable[None]]
"""Publishes the dead letter copy of a delivery, with the reason."""


class HeldDelivery(Delivery):
    """A message that was fetched: `ack`, `requeue` or `dead_letter` it, or `async with` it.

    The block acknowledges at its end, and gives the message back when it raises. What is not settled goes back to its
    queue when the App stops or its connection is lost. It holds a channel until then.
    """

    __slots__ = ("_bury", "_channel", "_tag", "_telemetry")

    _channel: DataChannel | None
    _bury: PublishDeadLetter
    _tag: int
    _telemetry: ConsumeTelemetry | None

    @classmethod
    def holding(
        cls,
        channel: DataChannel,
        frames: tuple[bytes, bytes, bytes],
        queue: str,
        bury: PublishDeadLetter,
        telemetry: ConsumeTelemetry | None,
    ) -> HeldDelivery:
        tag, delivery = cls.from_frames(*frames, queue)
        assert isinstance(delivery, HeldDelivery)
        delivery._channel, delivery._tag, delivery._bury = channel, tag, bury
        delivery._telemetry = telemetry
        return delivery

    def read(self, kind: type[Content]) -> Content:
        """The content as that type, as a handler would get it.

        :raises Undecodable: if it is not that.
        """
        try:
            content: Content = decode(kind, self)
        except ValueError as error:
            raise Undecodable(error) from error
        return content

    async def ack(self) -> None:
        """Done with it.

        :raises TransportUnavailable: the connection was lost; the message is delivered again.
        """
        channel = self._settle()
        self._write(channel, "ack")
        await _close(channel)

    async def requeue(self) -> None:
        """Give it back to its queue.

        :raises TransportUnavailable: the connection was lost, which gave it back already.
        """
        channel = self._settle()
        self._write(channel, "nack")
        await _close(channel)

    async def dead_letter(self, reason: str) -> None:
        """Bring it to its dead letter queue, with the reason; acknowledged when its copy is there.

        :raises ConfigError: if its queue has none. :raises PublishError: the copy was not confirmed; the message is given
            back. :raises TransportUnavailable: as `ack`.
        """
        channel = self._settle()
        try:
            await self._bury(self, reason)
        except BaseException:
            self._write(channel, "nack")
            await _close(channel)
            raise
        self._write(channel, "ack")
        await _close(channel)

    async def __aenter__(self) -> HeldDelivery:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._channel is None:
            return
        if error is None:
            await self.ack()
        else:
            with contextlib.suppress(TransportUnavailable):
                await self.requeue()

    def _write(self, channel: DataChannel, operation: Literal["ack", "nack"]) -> None:
        write = partial(channel.acknowledge, self._tag)
        if operation == "nack":
            write = partial(channel.requeue, self._tag, failed=False)
        if self._telemetry is None:
            write()
        else:
            self._telemetry.settled(self, self._tag, operation, write)

    def _settle(self) -> DataChannel:
        channel, self._channel = self._channel, None
        if channel is None:
            raise ConfigError("the message is settled already")
        if not channel.usable:
            raise TransportUnavailable(
                "the connection was lost: the message is delivered again", outcome="unknown"
            )
        return channel


async def fetch(
    open_channel: Callable[[], Awaitable[DataChannel]],
    queue: str,
    timeout: float,
    bury: PublishDeadLetter,
    telemetry: ConsumeTelemetry | None = None,
) -> HeldDelivery | None:
    """The next message of the queue within `timeout` seconds, or None; on a channel of its own.

    Who is cancelled meanwhile gets nothing, and the message goes back.

    :raises TopologyMismatch: if there is no such queue. :raises TransportUnavailable: without a connection.
    """
    # On its own: aiormq closes a channel whose method is cancelled, and a message may be on its way.
    task = asyncio.ensure_future(_fetch(open_channel, queue, timeout, bury, telemetry))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(_give_back)
        raise


async def _fetch(
    open_channel: Callable[[], Awaitable[DataChannel]],
    queue: str,
    timeout: float,
    bury: PublishDeadLetter,
    telemetry: ConsumeTelemetry | None,
) -> HeldDelivery | None:
    started = perf_counter()
    deadline = asyncio.get_running_loop().time() + timeout
    try:
        async with asyncio.timeout(max(timeout, ANSWER_SECONDS)):
            channel = await open_channel()
    except TimeoutError:
        raise TransportUnavailable("there was no connection to the broker within the deadline") from None
    try:
        with translate_errors(f"cannot get from queue {queue!r}"):
            frames = await channel.get(queue, ANSWER_SECONDS)
            if frames is None and timeout > 0:
                frames = await _consume_one(channel, queue, deadline)
    except WarrenError as error:
        if channel.close_error is not None and not isinstance(error, TopologyMismatch):
            raise to_sdk_error(f"cannot get from queue {queue!r}", channel.close_error) from error
        if channel.usable:
            await _close(channel)
        raise
    held = None if frames is None else HeldDelivery.holding(channel, frames, queue, bury, telemetry)
    if telemetry is not None:
        telemetry.received(held, 0 if held is None else held._tag, queue, started)
    if held is None:
        await _close(channel)
    return held


async def _consume_one(
    channel: DataChannel, queue: str, deadline: float
) -> tuple[bytes, bytes, bytes] | None:
    """Wait as a consumer with a prefetch of one; asking again and again would cost the broker more."""
    arrived: asyncio.Future[tuple[bytes, bytes, bytes]] = asyncio.get_running_loop().create_future()
    channel.on_delivery = lambda *frames: arrived.set_result(frames)
    tag = await channel.consume(queue, prefetch=1, timeout=ANSWER_SECONDS)
    left = max(0.0, deadline - asyncio.get_running_loop().time())
    await asyncio.wait((arrived, channel.ended), timeout=left, return_when=asyncio.FIRST_COMPLETED)
    await channel.cancel(tag, ANSWER_SECONDS)
    # What came before the cancellation was answered is here as well.
    return arrived.result() if arrived.done() else None


def _give_back(task: asyncio.Task[HeldDelivery | None]) -> None:
    if not task.cancelled() and task.exception() is None and (held := task.result()) is not None:
        returning = asyncio.ensure_future(held.requeue())
        returning.add_done_callback(lambda done: done.cancelled() or done.exception())


async def _close(channel: DataChannel) -> None:
    """The answer to the close says that what was written before has been read."""
    with translate_errors("the message may be delivered again"):
        await channel.close(ANSWER_SECONDS)
