"""Sessions: connections that aiormq makes, with a data plane of our own, and its errors as those of the SDK.

aiormq does the TLS, the login, the heartbeats and all synchronous methods. What is sent or received a message at a
time goes through `warren.sdk.transport.socket_stream` and `warren.sdk.transport.data_channel`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable, Coroutine, Iterator

import aiormq
from aiormq.abc import AbstractChannel
from aiormq.connection import Connection
from aiormq.exceptions import AMQPError, ChannelInvalidStateError, ConnectionClosed
from pamqp.exceptions import PAMQPException
from yarl import URL

from warren.sdk.errors import ConfigError, TopologyMismatch, TransportUnavailable, WarrenError
from warren.sdk.transport.data_channel import DataChannel
from warren.sdk.transport.socket_stream import Outlet, Socket
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

FOREIGN = (AMQPError, ChannelInvalidStateError, PAMQPException, OSError, EOFError, ValueError)
"""What aiormq and the socket raise; anything else is a mistake in the program and is not dressed up."""


Channels = Callable[[AbstractChannel, Outlet, DeliveryScanner, int, bool], DataChannel]
"""Makes a data channel: `DataChannel`, or one that does more."""


class Session:
    """One live connection to the broker."""

    def __init__(self, connection: Connection, socket: Socket, channels: Channels) -> None:
        assert socket.writer is not None
        self._connection = connection
        self._channels = channels
        self._scanner = socket.scanner
        self._channel_max = connection.connection_tune.channel_max or MOST_CHANNELS
        self._frame_max = connection.connection_tune.frame_max or UNLIMITED
        self._scanner.limit = self._frame_max
        self._writer = socket.writer
        self.outlet: Outlet = Outlet(socket.writer)
        self.lost: asyncio.Future[None] = connection.closing
        """Done when the connection has ended, for whatever reason."""

    @classmethod
    async def open(
        cls,
        url: str,
        name: str,
        on_blocked: Callable[[str | None], None],
        channels: Channels = DataChannel,
    ) -> Session:
        """Connect, log in, open the virtual host.

        :param channels: what its channels are.
        :raises TransportUnavailable: if that fails; not retryable where the credentials or the virtual host are at fault.
        """
        _quiet_aiormq()
        socket = Socket(on_blocked)
        target = target_of(url, name)
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
        cause = self.lost.exception() if self.lost.done() and not self.lost.cancelled() else None
        if not isinstance(cause, ConnectionClosed) or cause.args[:1] in {(CLOSED_HERE,), (FORCED,)}:
            return None
        return cause

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
        answered = confirms or transactions
        return self._channels(channel, self.outlet, self._scanner, self._frame_max, answered)

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
        self.outlet.flush()
        with contextlib.suppress(Exception):
            await self._connection.close()
        self._writer.close()


def _forget(opening: asyncio.Future[AbstractChannel]) -> None:
    """Whatever became of it: its error is said already."""
    if not opening.cancelled():
        opening.exception()


def _close_again(opening: asyncio.Future[DataChannel]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().leave()


def target_of(url: str, name: str) -> URL:
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


@contextlib.contextmanager
def translate_errors(what: str) -> Iterator[None]:
    """Turn the errors of aiormq and of the socket into those of the SDK; `what` says what could not be done."""
    before = _cancellations()
    try:
        yield
    except asyncio.CancelledError as error:
        if _cancellations() > before:
            raise
        # aiormq ends what waits on a closed connection with CancelledError, though nobody cancelled this task.
        raise TransportUnavailable(f"{what}: the connection was closed") from error
    except WarrenError:
        raise
    except FOREIGN as error:
        if _cancellations() > before:
            # aiormq answers a cancellation with the error that it met at the same time.
            raise asyncio.CancelledError from error
        raise translate(what, error) from error
    except Exception as error:
        if type(error) is not Exception:
            raise
        # Its answer to what waits on a connection that ended without an error of its own, as at a frame's boundary.
        raise TransportUnavailable(f"{what}: the connection was closed") from error
    if _cancellations() > before:
        # `asyncio.wait_for`, which aiormq uses, keeps a cancellation to itself before Python 3.12 if its result is there.
        raise asyncio.CancelledError


def _cancellations() -> int:
    """How often this task has been asked to end and not taken it back; it may have been before, and clean up now."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


def translate(what: str, error: BaseException) -> WarrenError:
    """The SDK's error for one of aiormq or of the socket."""
    match error:
        case WarrenError():
            return error
        case aiormq.exceptions.ChannelPreconditionFailed():
            return TopologyMismatch(f"{what}: {text_of(error)}", reply_code=406)
        case aiormq.exceptions.ChannelNotFoundEntity():
            return TopologyMismatch(f"{what}: {text_of(error)}", reply_code=404)
        case aiormq.exceptions.ChannelLockedResource():
            return TopologyMismatch(f"{what}: {text_of(error)}", reply_code=405, retryable=True)
        case aiormq.exceptions.ChannelAccessRefused():
            text = text_of(error)
            return TopologyMismatch(f"{what}: {text}", reply_code=403, retryable="in exclusive use" in text)
        case aiormq.exceptions.ProbableAuthenticationError() | aiormq.exceptions.AuthenticationError():
            return TransportUnavailable(f"{what}: the broker refused the user or password", retryable=False)
        case (
            aiormq.exceptions.ConnectionNotAllowed()
            | aiormq.exceptions.ConnectionCommandInvalid()
            | aiormq.exceptions.ConnectionNotImplemented()
        ):
            return TransportUnavailable(f"{what}: {text_of(error)}", retryable=False)
        case aiormq.exceptions.ConnectionClosed() if error.args and error.args[0] in (402, 403, 530):
            return TransportUnavailable(f"{what}: {error.args[-1]}", retryable=False)
        case TimeoutError():
            return TransportUnavailable(f"{what}: no answer in time")
        case UnicodeError() | ValueError():
            return ConfigError(f"{what}: {text_of(error)}")
        case _:
            return TransportUnavailable(f"{what}: {text_of(error)}")


def text_of(error: BaseException) -> str:
    """The error's own words on one line."""
    return " ".join(str(part) for part in error.args if part is not None) or type(error).__name__


def _quiet_aiormq() -> None:
    """A lost connection is an ordinary event that the SDK reports once, in its own logger; aiormq logs tracebacks."""
    logger = logging.getLogger("aiormq")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.CRITICAL)


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
