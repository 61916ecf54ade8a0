"""Session: one live connection to a broker, and the channels that are opened on it.

aio-pika makes the connection (TLS, login, heartbeats) and the control channels. Messages pass through
`warren.sdk.transport.socket_stream` and `warren.sdk.transport.data_channel`, which share its socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import aio_pika.abc
from aiormq.exceptions import ConnectionClosed
from yarl import URL

from warren.sdk.errors import TransportUnavailable, WarrenError
from warren.sdk.transport.aio_pika_connection import AmqpChannel, SharedSocketConnection
from warren.sdk.transport.connection_rejections import rejection
from warren.sdk.transport.data_channel import DataChannel
from warren.sdk.transport.error_translation import translate_errors
from warren.sdk.transport.socket_stream import FrameWriter, SocketFactory
from warren.sdk.transport.url_parameters import check_tls_files
from warren.wire.amqp_url import parse_url
from warren.wire.delivery_scanner import DeliveryScanner

CONNECT_SECONDS = 10.0
HEARTBEAT_SECONDS = "10"
"""Heartbeat timeout. A silent broker is noticed after two of them, early enough for another host to confirm a publish before
its deadline of 30 s."""
MISSED_HEARTBEATS = 2
"""Heartbeat timeouts without a byte from the broker, after which the connection is lost; aiormq waits for three."""

UNLIMITED = 2**31
MOST_CHANNELS = 65535
"""Largest number of channels of a connection if the broker sets no limit (AMQP 0-9-1, connection.tune)."""

Opened = TypeVar("Opened")

CLOSED_HERE = 0
"""Code of aiormq for a connection that this side closed."""
FORCED = 320
"""Reply code with which the broker closes the connection because it stops, or because an operator
closed it (AMQP 0-9-1, connection-forced)."""

ChannelFactory = Callable[[AmqpChannel, FrameWriter, DeliveryScanner, int, bool], DataChannel]
"""Factory of data channels: `DataChannel`, or the subclass of event capture."""


class Session:
    """One open connection to a broker, on which channels are opened; after a loss it cannot be used again.

    :ivar frame_max: largest size of a frame in bytes, as negotiated.
    """

    def __init__(
        self, connection: SharedSocketConnection, socket: SocketFactory, channels: ChannelFactory
    ) -> None:
        assert socket.writer is not None
        self._connection = connection
        self._socket = socket
        underlay = self._underlay = connection.underlay
        self._channels = channels
        self._scanner = socket.scanner
        self._channel_max = underlay.connection_tune.channel_max or MOST_CHANNELS
        self.frame_max: int = underlay.connection_tune.frame_max or UNLIMITED
        self._scanner.limit = self.frame_max
        self._writer = socket.writer
        self.frame_writer: FrameWriter = FrameWriter(socket.writer)
        self.lost: asyncio.Future[None] = underlay.closing
        """Done when the connection has ended, for any reason."""
        self.silence_limit: float = MISSED_HEARTBEATS * underlay.heartbeat_timeout
        """Seconds of the broker's silence after which the connection is lost; 0 for a connection without heartbeats."""
        if self.silence_limit:
            socket.limit_silence(self.silence_limit)

    @classmethod
    async def open(
        cls,
        url: str,
        name: str,
        on_blocked: Callable[[str | None], None],
        channels: ChannelFactory = DataChannel,
    ) -> Session:
        """Connect, log in, open the virtual host.

        :param url: AMQP URL of one broker.
        :param name: name under which the broker lists the connection.
        :param on_blocked: called with the reason of `connection.blocked`, and with None at `connection.unblocked`.
        :param channels: factory of the data channels.
        :raises ConnectionRejected: if the broker refuses the user, the password or the virtual host, or TLS fails, also
            for a TLS file of the URL that cannot be used.
        :raises TransportUnavailable: if the broker cannot be reached, or does not answer.
        """
        _quiet_aiormq()
        socket = SocketFactory(on_blocked)
        target = aiormq_url(url, name)
        connection = SharedSocketConnection(target, parse_url(url), socket)
        what = f"cannot connect to {target.host}:{target.port}"
        if target.scheme == "amqps":
            await asyncio.to_thread(check_tls_files, what, target)
        try:
            with translate_errors(what):
                async with asyncio.timeout(CONNECT_SECONDS):
                    await connection.connect()
        except BaseException as error:
            if socket.writer is not None:
                socket.writer.transport.abort()
            if isinstance(error, WarrenError):
                rejected = await rejection(what, error, socket, target)
                if rejected is not None:
                    raise rejected from None
            raise
        return cls(connection, socket, channels)

    @property
    def peer(self) -> tuple[str, int] | None:
        """Address and port of the peer; None if the socket has none."""
        found = self._writer.get_extra_info("peername")
        return (str(found[0]), int(found[1])) if isinstance(found, tuple) else None

    @property
    def server(self) -> tuple[str, str]:
        """Product and version of the broker, from `connection.start`."""
        properties = self._underlay.server_properties
        # The property `version` of Warren is the version of RabbitMQ whose protocol it speaks.
        version = properties.get("warren_version") or properties.get("version", "")
        return _text(properties.get("product", "a broker")), _text(version)

    @property
    def ended(self) -> bool:
        """True if the connection is lost or closed."""
        return self._underlay.is_closed or self.lost.done()

    @property
    def was_silent(self) -> bool:
        """True if the connection was given up because the broker sent nothing for `silence_limit` seconds."""
        return self._socket.is_silent

    @property
    def refusal(self) -> ConnectionClosed | None:
        """The error with which the broker closed the connection because of a frame from this client; otherwise None."""
        close_error = self.lost.exception() if self.lost.done() and not self.lost.cancelled() else None
        if not isinstance(close_error, ConnectionClosed) or close_error.args[:1] in {
            (CLOSED_HERE,),
            (FORCED,),
        }:
            return None
        return close_error

    async def channel(self, *, confirms: bool = False, transactions: bool = False) -> DataChannel:
        """Open a data channel: in confirm mode, in transaction mode, or in neither.

        If the caller is cancelled, the channel is closed as soon as it is open: aiormq would leave it half open.

        :raises TransportUnavailable: if the connection is lost, or the broker's `channel_max` is reached.
        """
        opening = asyncio.ensure_future(self._open_channel(confirms, transactions))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close_again)
            raise

    async def _open_channel(self, confirms: bool, transactions: bool) -> DataChannel:
        with translate_errors("cannot open a channel"):
            channel = await self._unless_lost(self._open_amqp_channel(confirms, transactions))
        expects_confirms = confirms or transactions
        return self._channels(channel, self.frame_writer, self._scanner, self.frame_max, expects_confirms)

    async def _open_amqp_channel(self, confirms: bool, transactions: bool) -> AmqpChannel:
        if self.ended:
            # aiormq would raise RuntimeError.
            raise TransportUnavailable("cannot open a channel: the connection was closed")
        number = self._free_channel_number()
        channel = await self._underlay.channel(number, confirms, timeout=CONNECT_SECONDS)
        assert isinstance(channel, AmqpChannel)
        if transactions:
            await channel.tx_select()
        return channel

    async def control_channel(self) -> aio_pika.abc.AbstractChannel:
        """Open a channel of aio-pika, for synchronous methods.

        :raises TransportUnavailable: if the connection is lost, or the broker's `channel_max` is reached.
        """
        with translate_errors("cannot open a channel"):
            return await self._unless_lost(self._open_control_channel())

    async def _open_control_channel(self) -> aio_pika.abc.AbstractChannel:
        if self.ended:
            raise TransportUnavailable("cannot open a channel: the connection was closed")
        channel = self._connection.channel(self._free_channel_number(), publisher_confirms=False)
        await channel.initialize()
        return channel

    def _free_channel_number(self) -> int:
        """Return the lowest free channel number; use it before another task runs, which could take it.

        :raises TransportUnavailable: if `channel_max` is reached. The broker would close the connection over a greater
            number (RabbitMQ: 530), and with it all other channels.
        """
        taken = self._underlay.channels
        number = next(number for number in itertools.count(1) if number not in taken)
        if number > self._channel_max:
            raise TransportUnavailable(
                f"cannot open a channel: {self._channel_max} are open, the broker's channel_max; close some first"
            )
        return number

    async def _unless_lost(self, opening: Coroutine[None, None, Opened]) -> Opened:
        """Await the opening of a channel; raise an error if the connection is lost meanwhile.

        aiormq never answers a request for a channel that comes between the loss
        of the connection and the end of its clean-up.
        """
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
        """Close the socket without `connection.close`; pending replies of the broker are not awaited."""
        self._writer.transport.abort()

    async def close(self) -> None:
        """Close the connection."""
        self.frame_writer.flush()
        with contextlib.suppress(Exception):
            await self._connection.close(asyncio.CancelledError)
        self._writer.close()


def _forget(opening: asyncio.Future[Any]) -> None:
    """Retrieve the exception of a channel opening that nobody awaits any more, so that asyncio does not log it."""
    if not opening.cancelled():
        opening.exception()


def _close_again(opening: asyncio.Future[DataChannel]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close_in_background()


def aiormq_url(url: str, name: str) -> URL:
    """Return the URL in the form of aiormq, with the defaults of `parse_url` and without a virtual host.

    yarl decodes the path of a URL and resolves `.` and `..` in it, so that no virtual host can be passed there. The query of
    `url` may set what `url_parameters` lists.

    :param name: name under which the broker lists the connection.
    """
    parts = parse_url(url)
    return URL.build(
        scheme="amqps" if parts.tls else "amqp",
        user=parts.user,
        password=parts.password,
        host=parts.host,
        port=parts.port,
        path="/",
        query={"name": name, "heartbeat": HEARTBEAT_SECONDS, **URL(url).query},
    )


def _quiet_aiormq() -> None:
    """Silence the logger of aiormq, which would report a lost connection
    with tracebacks; the SDK reports it itself, once.
    """
    logger = logging.getLogger("aiormq")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.CRITICAL)


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
