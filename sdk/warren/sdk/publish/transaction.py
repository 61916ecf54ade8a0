"""Transactions: publishes and acknowledgements on a channel of their own that take place together, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Protocol, Unpack

from warren.sdk.consume.delivery import RETURN_TOKEN, Delivery
from warren.sdk.errors import (
    BatchError,
    TransactionError,
    TransactionFailed,
    TransactionUnknown,
    Unroutable,
    WarrenError,
)
from warren.sdk.messages.codec import MessageOptions
from warren.sdk.publish.outgoing import Outgoing
from warren.sdk.publish.publisher_confirms import Publisher, encoding_error
from warren.sdk.publish.report import Failure, PublishReport
from warren.sdk.publish.returned_messages import returned_message
from warren.sdk.transport.data_channel import DataChannel
from warren.sdk.transport.error_translation import ChannelClosed, error_text, translate_errors
from warren.sdk.transport.session import Session

CLOSE_SECONDS = 5.0
SPARE_CHANNELS = 8
PREPARE_BYTES = 1024 * 1024
"""So many bytes are handed to the socket before it is waited for."""


class OnConnection(Protocol):
    """Does something on the connection, as soon as there is one; again on the next one if that is lost meanwhile."""

    def __call__(self, work: Callable[[Session], Awaitable[DataChannel]]) -> Awaitable[DataChannel]: ...


class TransactionChannels:
    """Channels in transaction mode, kept for the next transaction; a channel cannot confirm and commit both.

    :param on_connection: of the connection to publish on.
    :param publisher: knows whether the broker blocks, and counts what was committed.
    """

    def __init__(self, on_connection: OnConnection, publisher: Publisher) -> None:
        self._on_connection = on_connection
        self.publisher: Publisher = publisher
        self._spare: list[DataChannel] = []

    async def take(self, timeout: float) -> DataChannel:
        """:raises TransactionFailed: if there is none in time, or the broker blocks publishers."""
        try:
            async with asyncio.timeout(timeout):
                return await self._on_connection(self._of)
        except TimeoutError:
            raise TransactionFailed("there was no connection to the broker within the deadline") from None

    async def _of(self, session: Session) -> DataChannel:
        if (reason := self.publisher.blocked) is not None:
            raise TransactionFailed(f"the broker blocks publishers ({reason}); nothing was sent")
        self._spare = [channel for channel in self._spare if channel.usable]
        if self._spare:
            return self._spare.pop()
        return await session.channel(transactions=True)

    def give_back(self, channel: DataChannel) -> None:
        if channel.usable and len(self._spare) < SPARE_CHANNELS:
            self._spare.append(channel)
        else:
            channel.close_in_background()


class Encoder(Protocol):
    """What a transaction needs of the App's sending side."""

    async def encode_for(self, message: object, options: MessageOptions) -> Outgoing:
        """Encode, after what the message must reach is declared."""
        ...

    async def pass_through(self, outgoing: Outgoing, write: Callable[[Outgoing], Awaitable[None]]) -> None:
        """Through the publish middlewares, and what comes out of them to `write`."""
        ...


class Transaction:
    """What `app.transaction()` gives: the end of its block commits, an error in it rolls back.

    One task uses it; nothing that it publishes is in any queue, and nothing that it took is gone, before the commit.
    """

    def __init__(self, encoder: Encoder, channels: Callable[[], TransactionChannels], timeout: float) -> None:
        self._encoder = encoder
        self._pool = channels
        self._timeout = timeout
        self._channels: TransactionChannels | None = None
        self._channel: DataChannel | None = None
        self._published: list[tuple[object, Outgoing]] = []
        self._by_id: dict[str, int] = {}
        self._returned: list[tuple[Unroutable, int | None]] = []
        self._unread = 0
        self._asked = False
        """It may hold a message, even one that came after a cancelled `get`."""
        self._gave_up = False
        """A `get` ended without its answer, whose message may come back after the commit."""
        self._taken = 0
        """The delivery tag of the last message that was taken."""

    async def publish(self, message: object, **options: Unpack[MessageOptions]) -> None:
        """Publish with the commit; persistent and mandatory, as `App.publish`.

        :raises TransactionFailed: if the connection or the channel is lost: nothing will have taken place.
        """
        outgoing = await self._encoder.encode_for(message, options)

        async def write(passed: Outgoing) -> None:
            channel, index = self._usable(), len(self._published)
            # Their returns could not be told apart without it; what came with a delivery is of another publish.
            first = self._by_id.setdefault(passed.message_id, index)
            passed.set_header(RETURN_TOKEN, None if first == index else index)
            try:
                channel.publish(passed, passed.mandatory)
            except Exception as error:
                raise encoding_error(error) from error
            self._published.append((message, passed))
            self._unread += len(passed.body)
            if self._unread > PREPARE_BYTES:
                self._unread = 0
                await self._drain(channel)

        await self._encoder.pass_through(outgoing, write)

    async def get(self, queue: str) -> Delivery | None:
        """Take one message of the queue, or None if it is empty; the commit acknowledges it, a rollback gives it back.

        :raises TransactionFailed: if the queue does not exist, or the connection is lost.
        """
        channel = self._usable()
        self._asked = self._gave_up = True
        try:
            got = await channel.get(queue, self._timeout)
            self._gave_up = False
        except TimeoutError:
            raise TransactionFailed(f"no answer in time from queue {queue!r}") from None
        except OSError:
            raise self._failed(channel) from None
        if got is None:
            return None
        self._taken, delivery = Delivery.from_frames(*got, queue)
        return delivery

    async def __aenter__(self) -> Transaction:
        if self._channel is not None:
            raise TransactionError("a transaction can be used once: app.transaction() makes another")
        self._channels = self._pool()
        self._channel = await self._channels.take(self._timeout)
        self._channel.on_return = self._on_return
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._channels is not None
        assert self._channel is not None
        channel = self._channel
        try:
            if error is not None:
                await self._roll_back(channel)
            else:
                await self._commit(channel)
        except BaseException:
            channel.close_in_background()
            raise
        if self._gave_up:
            channel.close_in_background()
        else:
            self._channels.give_back(channel)
        if error is None:
            self._channels.publisher.committed(len(self._published), [one for one, _ in self._returned])
            if self._returned:
                raise BatchError(self._report())

    async def _commit(self, channel: DataChannel) -> None:
        self._usable()
        if self._taken:
            channel.acknowledge_up_to(self._taken)
        channel.flush()
        try:
            async with asyncio.timeout(self._timeout):
                with translate_errors("the commit failed"):
                    await channel.run(channel.methods.tx_commit())
        except TimeoutError:
            raise TransactionUnknown(
                f"the broker did not answer the commit within {self._timeout:g} s"
            ) from None
        except WarrenError as error:
            raise self._judged(channel, error) from error
        channel.transaction_ended(committed=True)

    def _judged(self, channel: DataChannel, error: WarrenError) -> TransactionError:
        """The channel's end before the answer is the answer, but for a part of it (RabbitMQ: `partial tx completion`)."""
        close_error = channel.close_error
        if isinstance(close_error, ChannelClosed) and "partial" not in error_text(close_error):
            return TransactionFailed(f"nothing was committed: {error_text(close_error)}", outcome="refused")
        return TransactionUnknown(f"the commit was sent, and its outcome is not known: {error}")

    async def _roll_back(self, channel: DataChannel) -> None:
        """The error of the block is what counts; a channel that cannot roll back is closed, which does the same."""
        if not channel.usable:
            return
        if self._asked:
            # A rollback would leave to the channel what it took; its end gives it back.
            channel.close_in_background()
            return
        channel.flush()
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                with translate_errors("cannot roll back"):
                    await channel.run(channel.methods.tx_rollback())
        except (TimeoutError, WarrenError):
            channel.close_in_background()
        channel.transaction_ended(committed=False)

    async def _drain(self, channel: DataChannel) -> None:
        try:
            async with asyncio.timeout(self._timeout):
                await channel.drain()
        except TimeoutError:
            raise TransactionFailed("the broker does not read; nothing will be committed") from None
        except OSError:
            raise self._failed(channel) from None

    def _usable(self) -> DataChannel:
        if self._channel is None:
            raise TransactionError("the transaction has not begun: async with app.transaction() as tx")
        if not self._channel.usable:
            raise self._failed(self._channel)
        return self._channel

    def _failed(self, channel: DataChannel) -> TransactionFailed:
        close_error = channel.close_error
        if isinstance(close_error, ChannelClosed):
            return TransactionFailed(f"nothing was committed: {error_text(close_error)}", outcome="refused")
        return TransactionFailed("the connection was lost before the commit; nothing was committed")

    def _on_return(self, method: bytes, header: bytes, body: bytes) -> None:
        self._returned.append(returned_message(method, header, body))

    def _report(self) -> PublishReport:
        failures = []
        for error, token in self._returned:
            index = self._by_id[str(error.properties.get("message_id", ""))] if token is None else token
            message, outgoing = self._published[index]
            failures.append(Failure(index, message, error, outgoing))
        return PublishReport(len(self._published), tuple(failures))
