"""Transactions: publishes and acknowledgements on a channel of their own that take effect together, or not at all."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
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
"""Bytes of message bodies after which a transaction waits until the write buffer of the socket has drained."""


class OnConnection(Protocol):
    """Function that calls `work` with the publish connection and returns the channel from it.

    If the connection is lost meanwhile, it calls `work` again with the next one.
    """

    def __call__(self, work: Callable[[Session], Awaitable[DataChannel]]) -> Awaitable[DataChannel]: ...


class TransactionChannels:
    """Pool of channels in transaction mode; a channel cannot have confirms and transactions both.

    :param on_connection: runs work on the publish connection.
    :param publisher: publisher of the App. A transaction is refused while its `blocked` is
        set; committed messages are added to its statistics.
    """

    def __init__(self, on_connection: OnConnection, publisher: Publisher) -> None:
        self._on_connection = on_connection
        self.publisher: Publisher = publisher
        self._spare: list[DataChannel] = []

    async def take(self, timeout: float) -> DataChannel:
        """Return a channel in transaction mode: one that an earlier transaction gave back, or a new one.

        :param timeout: seconds.
        :raises TransactionFailed: if there is none in time, or the broker blocks publishers.
        """
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
        """Keep the channel for the next transaction, or close it if it is
        unusable or `SPARE_CHANNELS` are kept already.
        """
        if channel.usable and len(self._spare) < SPARE_CHANNELS:
            self._spare.append(channel)
        else:
            channel.close_in_background()


class Encoder(Protocol):
    """Interface by which a transaction encodes its messages and applies the publish middlewares.

    `PublishOperations` implements it.
    """

    async def encode_for(self, message: object, options: MessageOptions) -> Outgoing:
        """Declare the topology that the message requires, and return the encoded message."""
        ...

    async def pass_through(self, outgoing: Outgoing, write: Callable[[Outgoing], Awaitable[None]]) -> None:
        """Pass the message through the publish middlewares, and call `write` with the result."""
        ...


class Transaction:
    """A transaction of `app.transaction()`: the end of the `async with` block commits, an exception in it rolls back.

    Use it from one task. Before the commit no published message is in a queue, and no received message is acknowledged.
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
        self._undrained_bytes = 0
        self._may_hold_messages = False
        """True if the channel may hold unacknowledged messages, including one
        that arrived after its `get` was cancelled."""
        self._get_unanswered = False
        """True if a `get` ended without its reply, which may still arrive, even after the commit."""
        self._last_tag = 0
        """The delivery tag of the last message that was received."""

    async def publish(self, message: object, **options: Unpack[MessageOptions]) -> None:
        """Publish a message that reaches its queues with the commit; persistent and mandatory, as `App.publish`.

        :raises TransactionFailed: if the connection or the channel is lost; nothing takes effect.
        """
        outgoing = await self._encoder.encode_for(message, options)

        async def write(passed: Outgoing) -> None:
            channel, index = self._usable(), len(self._published)
            # Returns of messages with the same id need the token; one of a forwarded delivery belongs to another publish.
            first = self._by_id.setdefault(passed.message_id, index)
            passed.set_header(RETURN_TOKEN, None if first == index else index)
            try:
                channel.publish(passed, passed.mandatory)
            except Exception as error:
                raise encoding_error(error) from error
            self._published.append((message, passed))
            self._undrained_bytes += len(passed.body)
            if self._undrained_bytes > PREPARE_BYTES:
                self._undrained_bytes = 0
                await self._drain(channel)

        await self._encoder.pass_through(outgoing, write)

    async def get(self, queue: str) -> Delivery | None:
        """Return one message of the queue, or None if it is empty; the commit acknowledges it, a rollback requeues it.

        :raises TransactionFailed: if the queue does not exist, or the connection is lost.
        """
        channel = self._usable()
        self._may_hold_messages = self._get_unanswered = True
        try:
            got = await channel.get(queue, self._timeout)
            self._get_unanswered = False
        except TimeoutError:
            raise TransactionFailed(f"no answer in time from queue {queue!r}") from None
        except OSError:
            raise self._failed(channel) from None
        if got is None:
            return None
        self._last_tag, delivery = Delivery.from_frames(*got, queue)
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
        except BaseException as failure:
            channel.close_in_background()
            if isinstance(failure, TransactionFailed) and isinstance(channel.close_error, ChannelClosed):
                await self._declare_missing([channel.close_error])
            raise
        if self._get_unanswered:
            channel.close_in_background()
        else:
            self._channels.give_back(channel)
        if error is None:
            self._channels.publisher.committed(len(self._published), [one for one, _ in self._returned])
            if self._returned:
                await self._declare_missing([each for each, _ in self._returned])
                raise BatchError(self._report())

    async def _commit(self, channel: DataChannel) -> None:
        self._usable()
        if self._last_tag:
            channel.acknowledge_up_to(self._last_tag)
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
            raise self._commit_error(channel, error) from error
        channel.transaction_ended(committed=True)

    def _commit_error(self, channel: DataChannel, error: WarrenError) -> TransactionError:
        """Return `TransactionFailed` if the broker closed the channel over the commit, otherwise `TransactionUnknown`.

        By closing the channel the broker reports that nothing was committed, unless the text of the error contains
        RabbitMQ's `partial tx completion`.
        """
        close_error = channel.close_error
        if isinstance(close_error, ChannelClosed) and "partial" not in error_text(close_error):
            return TransactionFailed(f"nothing was committed: {error_text(close_error)}", outcome="refused")
        return TransactionUnknown(f"the commit was sent, and its outcome is not known: {error}")

    async def _declare_missing(self, errors: Sequence[Exception]) -> None:
        """Declare again what the transaction's messages have missed, so that the next transaction finds it."""
        assert self._channels is not None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._timeout):
                await asyncio.gather(*map(self._channels.publisher.declare_missing, errors))

    async def _roll_back(self, channel: DataChannel) -> None:
        """Roll back; if that fails, close the channel, which has the same effect. No error is raised."""
        if not channel.usable:
            return
        if self._may_hold_messages:
            # A rollback leaves received messages unacknowledged on the channel; closing it requeues them.
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
