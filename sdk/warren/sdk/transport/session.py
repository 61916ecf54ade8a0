"""Sessions: connections that aiormq makes, with a data plane of our own, and its errors as those of the SDK.

aiormq does the TLS, the login, the heartbeats and all synchronous methods. What is sent or received a message at a
time goes through `warren.sdk.transport.socket_stream` and `warren.sdk.transport.data_channel`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable, Coroutine

from aiormq.abc import AbstractChannel
from aiormq.connection import Connection
from aiormq.exceptions import ConnectionClosed
from yarl import URL

from warren.sdk.errors import TransportUnavailable
from warren.sdk.transport.data_channel import DataChannel
from warren.sdk.transport.error_translation import translate_errors
from warren.sdk.transport.socket_stream import FrameWriter, SocketFactory
from warren.wire.amqp_url import parse_url
from warren.wire.delivery_scanner import DeliveryScanner

CONNECT_SECONDS = 10.0
HEARTBEAT_SECONDS = "15"
UNLIMITED = 2**31
MOST_CHANNELS = 65535
"""Where the broker sets no limit (AMQP 0-9-1, connection.tune)."""

CLOSED_HERE = 0
"""aiormq's code for a connection that this side has closed."""
FORCED = 320
"""The broker stops, or an operator has closed the connection (AMQP 0-9-1, connection-forced)."""

ChannelFactory = Callable[[AbstractChannel, FrameWriter, DeliveryScanner, int, bool], DataChannel]
"""Makes a data channel: `DataChannel`, or one that does more."""


class Session:
    """One live connection to the broker."""

    def __init__(self, connection: Connection, socket: SocketFactory, channels: ChannelFactory) -> None:
        assert socket.writer is not None
        self._connection = connection
        self._channels = channels
        self._scanner = socket.scanner
        self._channel_max = connection.connection_tune.channel_max or MOST_CHANNELS
        self._frame_max = connection.connection_tune.frame_max or UNLIMITED
        self._scanner.limit = self._frame_max
        self._writer = socket.writer
        self.frame_writer: FrameWriter = FrameWriter(socket.writer)
        self.lost: asyncio.Future[None] = connection.closing
        """Done when the connection has ended, for whatever reason."""

    @classmethod
    async def open(
        cls,
        url: str,
        name: str,
        on_blocked: Callable[[str | None], None],
        channels: ChannelFactory = DataChannel,
    ) -> Session:
        """Connect, log in, open the virtual host.

        :param channels: what its channels are.
        :raises TransportUnavailable: if that fails; not retryable where the credentials or the virtual host are at fault.
        """
        _quiet_aiormq()
        socket = SocketFactory(on_blocked)
        target = aiormq_url(url, name)
        connection = Connection(target, transport_factory=socket)
        try:
            with translate_errors(f"cannot connect to {target.host}:{target.port}"):
                async with asyncio.timeout(CONNECT_SECONDS):
                    await connection.connect()
        except BaseException:
            if socket.writer is not None:
                socket.writer.transport.abort()
            raise
        return cls(connection, socket, channels)

    @property
    def peer(self) -> tuple[str, int] | None:
        """The address and port at the other end, if it has them."""
        found = self._writer.get_extra_info("peername")
        return (str(found[0]), int(found[1])) if isinstance(found, tuple) else None

    @property
    def server(self) -> tuple[str, str]:
        """Product and version, as the broker says in connection.start."""
        said = self._connection.server_properties
        return _text(said.get("product", "a broker")), _text(said.get("version", ""))

    @property
    def ended(self) -> bool:
        """Lost or closed, whoever has noticed so far."""
        return self._connection.is_closed or self.lost.done()

    @property
    def refusal(self) -> ConnectionClosed | None:
        """What the broker said when it ended the connection over something that came on it; None if it ended otherwise."""
        close_error = self.lost.exception() if self.lost.done() and not self.lost.cancelled() else None
        if not isinstance(close_error, ConnectionClosed) or close_error.args[:1] in {
            (CLOSED_HERE,),
            (FORCED,),
        }:
            return None
        return close_error

    async def channel(self, *, confirms: bool = False, transactions: bool = False) -> DataChannel:
        """Open a channel, in confirm mode or in transaction mode or in neither.

        If the caller is cancelled, the channel is closed again as soon as it is open: aiormq would leave it half open.
        """
        opening = asyncio.ensure_future(self._open_channel(confirms, transactions))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close_again)
            raise

    async def _open_channel(self, confirms: bool, transactions: bool) -> DataChannel:
        with translate_errors("cannot open a channel"):
            channel = await self._unless_lost(self._opened(confirms, transactions))
        expects_confirms = confirms or transactions
        return self._channels(channel, self.frame_writer, self._scanner, self._frame_max, expects_confirms)

    async def _opened(self, confirms: bool, transactions: bool) -> AbstractChannel:
        if self.ended:
            # aiormq says this with a RuntimeError.
            raise TransportUnavailable("cannot open a channel: the connection was closed")
        # Up to the number's use without a turn of the loop, in which another one could take it.
        taken = self._connection.channels
        number = next(number for number in itertools.count(1) if number not in taken)
        if number > self._channel_max:
            # The broker would close the connection over it (RabbitMQ: 530), and end all others.
            raise TransportUnavailable(
                f"cannot open a channel: {self._channel_max} are open, the broker's channel_max; close some first"
            )
        channel = await self._connection.channel(number, confirms, timeout=CONNECT_SECONDS)
        if transactions:
            await channel.tx_select()
        return channel

    async def _unless_lost(self, opening: Coroutine[None, None, AbstractChannel]) -> AbstractChannel:
        """aiormq does not tell whoever asks for a channel after a loss was noticed, and before all was cleared away."""
        task = asyncio.ensure_future(opening)
        try:
            await asyncio.wait((task, self.lost), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise TransportUnavailable("cannot open a channel: the connection was lost")
            return task.result()
        finally:
            task.add_done_callback(_forget)
            task.cancel()

    def abort(self) -> None:
        """End the connection without a word to the broker, so that nobody waits for its answers any more."""
        self._writer.transport.abort()

    async def close(self) -> None:
        self.frame_writer.flush()
        with contextlib.suppress(Exception):
            await self._connection.close()
        self._writer.close()


def _forget(opening: asyncio.Future[AbstractChannel]) -> None:
    """Whatever became of it: its error is said already."""
    if not opening.cancelled():
        opening.exception()


def _close_again(opening: asyncio.Future[DataChannel]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close_in_background()


def aiormq_url(url: str, name: str) -> URL:
    """The URL as aiormq reads it, with the defaults of `parse_url`; its query may set `heartbeat` and TLS files."""
    parts = parse_url(url)
    return URL.build(
        scheme="amqps" if parts.tls else "amqp",
        user=parts.user,
        password=parts.password,
        host=parts.host,
        port=parts.port,
        path="/" if parts.virtual_host == "/" else f"/{parts.virtual_host}",
        query={"name": name, "heartbeat": HEARTBEAT_SECONDS, **URL(url).query},
    )


def _quiet_aiormq() -> None:
    """A lost connection is an ordinary event that the SDK reports once, in its own logger; aiormq logs tracebacks."""
    logger = logging.getLogger("aiormq")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.CRITICAL)


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
