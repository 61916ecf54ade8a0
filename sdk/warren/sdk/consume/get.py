"""Fetching a single message: `app.get` and the message that its caller settles."""

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
"""Longest wait for the broker's reply to a synchronous AMQP method."""

PublishDeadLetter = Callable[[Delivery, str], Awaitable[None]]
"""Function that publishes the dead letter copy of a delivery, with the reason, and returns after the confirm."""


class FetchedMessage(Delivery):
    """A message that `app.get` returned and that its caller settles: with `ack`, `requeue` or `dead_letter`, or with
    `async with`.

    An `async with` block acknowledges at its end, and requeues if it raises. A message that is not settled goes back to its
    queue when the App stops or its connection is lost. It occupies a channel until then.
    """

    __slots__ = ("_channel", "_publish_dead_letter", "_tag", "_telemetry")

    _channel: DataChannel | None
    _publish_dead_letter: PublishDeadLetter
    _tag: int
    _telemetry: ConsumeTelemetry | None

    @classmethod
    def from_get(
        cls,
        channel: DataChannel,
        frames: tuple[bytes, bytes, bytes],
        queue: str,
        publish_dead_letter: PublishDeadLetter,
        telemetry: ConsumeTelemetry | None,
    ) -> FetchedMessage:
        """Decode a message that was fetched on this channel.

        :param frames: payloads of the message's method, header and body frames.
        :param queue: name of the queue that it was fetched from.
        """
        tag, delivery = cls.from_frames(*frames, queue)
        assert isinstance(delivery, FetchedMessage)
        delivery._channel, delivery._tag = channel, tag
        delivery._publish_dead_letter = publish_dead_letter
        delivery._telemetry = telemetry
        return delivery

    @property
    def lost(self) -> bool:
        """True if the connection was lost before the message was settled: the broker delivers it again."""
        return self._channel is not None and not self._channel.usable

    def read(self, kind: type[Content]) -> Content:
        """Return the content as this type, as a handler would get it.

        :raises Undecodable: if the content is of another type.
        """
        try:
            content: Content = decode(kind, self)
        except ValueError as error:
            raise Undecodable(error) from error
        return content

    async def ack(self) -> None:
        """Acknowledge the message.

        :raises TransportUnavailable: if the connection was lost; the message is delivered again.
        """
        channel = self._take_channel()
        self._send(channel, "ack")
        await _close(channel)

    async def requeue(self) -> None:
        """Return the message to its queue.

        :raises TransportUnavailable: if the connection was lost, which has returned the message already.
        """
        channel = self._take_channel()
        self._send(channel, "nack")
        await _close(channel)

    async def dead_letter(self, reason: str) -> None:
        """Publish a dead letter copy with the reason, and acknowledge the message after its confirm.

        :raises ConfigError: if the queue has no dead letter exchange.
        :raises PublishError: if the copy was not confirmed; the message is requeued.
        :raises TransportUnavailable: if the connection was lost; the message is delivered again.
        """
        channel = self._take_channel()
        try:
            await self._publish_dead_letter(self, reason)
        except BaseException:
            self._send(channel, "nack")
            await _close(channel)
            raise
        self._send(channel, "ack")
        await _close(channel)

    async def __aenter__(self) -> FetchedMessage:
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

    def _send(self, channel: DataChannel, operation: Literal["ack", "nack"]) -> None:
        settle = partial(channel.acknowledge, self._tag)
        if operation == "nack":
            settle = partial(channel.requeue, self._tag, failed=False)
        if self._telemetry is None:
            settle()
        else:
            self._telemetry.settled(self, self._tag, operation, settle)

    def _take_channel(self) -> DataChannel:
        """Return the channel to settle the message on, and mark the message as settled.

        :raises ConfigError: if the message is settled already.
        :raises TransportUnavailable: if the connection was lost; the broker delivers the message again.
        """
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
    publish_dead_letter: PublishDeadLetter,
    telemetry: ConsumeTelemetry | None = None,
) -> FetchedMessage | None:
    """Return the next message of the queue on a channel of its own, or None if none arrives within `timeout` seconds.

    If the caller is cancelled meanwhile, the message returns to its queue.

    :param open_channel: opens the channel.
    :param publish_dead_letter: publishes the dead letter copy if the caller dead-letters the message.
    :raises TopologyMismatch: if there is no such queue, or it is deleted meanwhile.
    :raises TransportUnavailable: if there is no connection, or the broker cancels the consumer for another reason.
    """
    # Shielded, because aiormq closes a channel whose method is cancelled, and a message may be on its way.
    task = asyncio.ensure_future(_fetch(open_channel, queue, timeout, publish_dead_letter, telemetry))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(_requeue_result)
        raise


async def _fetch(
    open_channel: Callable[[], Awaitable[DataChannel]],
    queue: str,
    timeout: float,
    publish_dead_letter: PublishDeadLetter,
    telemetry: ConsumeTelemetry | None,
) -> FetchedMessage | None:
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
    message = (
        None
        if frames is None
        else FetchedMessage.from_get(channel, frames, queue, publish_dead_letter, telemetry)
    )
    if telemetry is not None:
        telemetry.received(message, 0 if message is None else message._tag, queue, started)
    if message is None:
        await _close(channel)
    return message


async def _consume_one(
    channel: DataChannel, queue: str, deadline: float
) -> tuple[bytes, bytes, bytes] | None:
    """Return the next message of the queue as the payloads of its method, header and body frames; None if none arrives
    in time.

    A consumer with a prefetch of 1 waits for it, which costs the broker less than repeated `basic.get`.

    :param deadline: time of the event loop.
    :raises WarrenError: if the queue is deleted meanwhile, or the channel ends.
    """
    arrived: asyncio.Future[tuple[bytes, bytes, bytes]] = asyncio.get_running_loop().create_future()
    channel.on_delivery = lambda *frames: arrived.set_result(frames)
    tag = await channel.consume(queue, prefetch=1, timeout=ANSWER_SECONDS)
    left = max(0.0, deadline - asyncio.get_running_loop().time())
    await asyncio.wait((arrived, channel.consumer_ended), timeout=left, return_when=asyncio.FIRST_COMPLETED)
    await channel.cancel(tag, ANSWER_SECONDS)
    # A message may also have arrived between the deadline and the answer to the cancellation.
    if arrived.done():
        return arrived.result()
    if channel.consumer_ended.done():
        # The broker's answer says whether the queue is gone; one that was declared again may have a message.
        frames = await channel.get(queue, ANSWER_SECONDS)
        if frames is None:
            raise channel.consumer_error(f"cannot get from queue {queue!r}")
        return frames
    return None


def _requeue_result(task: asyncio.Task[FetchedMessage | None]) -> None:
    """Return the message of a finished fetch to its queue, because the caller was cancelled."""
    if not task.cancelled() and task.exception() is None and (message := task.result()) is not None:
        requeue = asyncio.ensure_future(message.requeue())
        requeue.add_done_callback(lambda done: done.cancelled() or done.exception())


async def _close(channel: DataChannel) -> None:
    """Close the channel and wait for `channel.close-ok`: by then the broker has processed the settlement before it."""
    with translate_errors("the message may be delivered again"):
        await channel.close(ANSWER_SECONDS)
