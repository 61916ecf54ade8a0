"""The data plane: publishes, confirms, returns, deliveries and acknowledgements on a connection that aiormq made.

aiormq does the socket, TLS, SASL, heartbeats and all synchronous methods. For what is sent or received a message at a
time this module uses the stream writer directly (each write is whole frames, as aiormq's own are) and overrides these
private hooks of aiormq 7.2, which a test names:

- `Channel._on_deliver_frame`, `_on_return_frame`, `_on_confirm_frame`; inside them `_get_frame` and `_read_content`
- `Connection._Connection__handle_connection_blocked` and `..._unblocked`
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable, Iterator
from typing import Any

import aiormq
import pamqp.frame
from aiormq.abc import ConfirmationFrameType
from aiormq.channel import Channel
from aiormq.connection import Connection, TCPTransportFactory, TLSTransportFactory, TransportFactory
from aiormq.exceptions import AMQPError, ChannelInvalidStateError
from pamqp import commands as spec
from pamqp.body import ContentBody
from pamqp.exceptions import PAMQPException
from pamqp.header import ContentHeader
from yarl import URL

from warren.sdk.errors import ConfigError, TopologyMismatch, TransportUnavailable, WarrenError
from warren.wire.url import parse_url

CONNECT_SECONDS = 10.0
HEARTBEAT_SECONDS = "15"
FRAME_BUFFER = 100
FRAME_OVERHEAD = 8
PRIVATE_HOOKS = {
    Channel: ("_on_deliver_frame", "_on_return_frame", "_on_confirm_frame", "_get_frame", "_read_content"),
    Connection: (
        "_Connection__handle_connection_blocked",
        "_Connection__handle_connection_unblocked",
    ),
}

FOREIGN = (AMQPError, ChannelInvalidStateError, PAMQPException, OSError, EOFError, ValueError)
"""What aiormq and the socket raise; anything else is a mistake in the program and is not dressed up."""

Content = tuple[ContentHeader, bytes]


class Socket(TransportFactory):
    """Opens the stream pair for aiormq and keeps its writer."""

    def __init__(self) -> None:
        self.writer: asyncio.StreamWriter | None = None

    async def create(self, url: URL, **keywords: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        inner = TLSTransportFactory() if url.scheme == "amqps" else TCPTransportFactory()
        reader, self.writer = await inner.create(url, **keywords)
        return reader, self.writer


class BlockableConnection(Connection):
    """Tells when the broker stops reading this connection, and when it goes on (`connection.blocked`)."""

    on_blocked: Callable[[str | None], None] = staticmethod(lambda reason: None)

    async def _Connection__handle_connection_blocked(self, frame: spec.Connection.Blocked) -> None:
        self.on_blocked(frame.reason or "no reason given")

    async def _Connection__handle_connection_unblocked(self, frame: spec.Connection.Unblocked) -> None:
        self.on_blocked(None)


class DataChannel(Channel):
    """A channel whose messages go to plain callbacks, without a task or an aiormq future for each."""

    on_delivery: Callable[[spec.Basic.Deliver, Content], None]
    on_return: Callable[[spec.Basic.Return, Content], None]
    on_confirm: Callable[[int, bool, bool], None]
    writer: asyncio.StreamWriter

    async def _on_deliver_frame(self, frame: spec.Basic.Deliver) -> None:
        self.on_delivery(frame, await self._content(frame))

    async def _on_return_frame(self, frame: spec.Basic.Return) -> None:
        self.on_return(frame, await self._content(frame))

    async def _on_confirm_frame(self, frame: ConfirmationFrameType) -> None:
        self.on_confirm(
            frame.delivery_tag or 0,
            bool(getattr(frame, "multiple", False)),
            isinstance(frame, spec.Basic.Ack),
        )

    async def _content(self, frame: spec.Basic.Deliver | spec.Basic.Return) -> Content:
        header = await self._get_frame()
        assert isinstance(header, ContentHeader)
        message = await self._read_content(frame, header)
        return header, message.body

    @property
    def usable(self) -> bool:
        return not self.is_closed and not self.writer.is_closing()

    def publish(
        self, exchange: str, routing_key: str, mandatory: bool, properties: spec.Basic.Properties, body: bytes
    ) -> None:
        """Write one message whole, or nothing; the caller bounds how much may wait in the writer.

        :raises ValueError: if properties and headers do not fit in one frame (AMQP 0-9-1 section 4.2.6.1). Sent
            nevertheless, the broker would close the connection over it, and the next one over its republish.
        """
        number = self.number
        method = spec.Basic.Publish(exchange=exchange, routing_key=routing_key, mandatory=mandatory)
        header = ContentHeader(body_size=len(body), properties=properties)
        parts = [pamqp.frame.marshal(method, number), pamqp.frame.marshal(header, number)]
        frame_max = self.connection.connection_tune.frame_max or 2**31
        if len(parts[1]) > frame_max:
            raise ValueError(
                f"the headers take {len(parts[1])} bytes, and a frame of this broker {frame_max}"
            )
        room = frame_max - FRAME_OVERHEAD
        parts.extend(
            pamqp.frame.marshal(ContentBody(body[start : start + room]), number)
            for start in range(0, len(body), room)
        )
        self.writer.write(b"".join(parts))

    def acknowledge(self, delivery_tag: int) -> None:
        self.writer.write(pamqp.frame.marshal(spec.Basic.Ack(delivery_tag=delivery_tag), self.number))

    def reject(self, delivery_tag: int, *, requeue: bool) -> None:
        frame = spec.Basic.Reject(delivery_tag=delivery_tag, requeue=requeue)
        self.writer.write(pamqp.frame.marshal(frame, self.number))


class Session:
    """One live connection to the broker."""

    def __init__(self, connection: BlockableConnection, writer: asyncio.StreamWriter) -> None:
        self._connection = connection
        self.writer = writer
        self.lost: asyncio.Future[None] = connection.closing
        """Done when the connection has ended, for whatever reason."""

    @classmethod
    async def open(cls, url: str, name: str, on_blocked: Callable[[str | None], None]) -> Session:
        """Connect, log in, open the virtual host.

        :raises TransportUnavailable: if that fails; not retryable where the credentials or the virtual host are at fault.
        """
        _quiet_aiormq()
        socket = Socket()
        connection = BlockableConnection(target_of(url, name), transport_factory=socket)
        connection.on_blocked = on_blocked
        with translated("cannot connect"):
            async with asyncio.timeout(CONNECT_SECONDS):
                await connection.connect()
        assert socket.writer is not None
        return cls(connection, socket.writer)

    async def channel(self, *, confirms: bool = False) -> DataChannel:
        """Open a channel; the callbacks must be set before anything is consumed or published on it."""
        channels = self._connection.channels
        number = next(number for number in itertools.count(1) if number not in channels)
        channel = DataChannel(
            self._connection, number, publisher_confirms=confirms, frame_buffer=FRAME_BUFFER
        )
        channel.writer = self.writer
        channels[number] = channel
        with translated("cannot open a channel"):
            await channel.open(timeout=CONNECT_SECONDS)
        return channel

    async def close(self) -> None:
        with contextlib.suppress(Exception):
            await self._connection.close()
        self.writer.close()


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
def translated(what: str) -> Iterator[None]:
    """Turn the errors of aiormq and of the socket into those of the SDK; `what` says what could not be done."""
    try:
        yield
    except asyncio.CancelledError as error:
        if _being_cancelled():
            raise
        # aiormq ends what waits on a closed connection with CancelledError, though nobody cancelled this task.
        raise TransportUnavailable(f"{what}: the connection was closed") from error
    except WarrenError:
        raise
    except FOREIGN as error:
        if _being_cancelled():
            # aiormq answers a cancellation with the error that it met at the same time.
            raise asyncio.CancelledError from error
        raise translate(what, error) from error


def _being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


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
            return TopologyMismatch(f"{what}: {text_of(error)}", reply_code=405)
        case aiormq.exceptions.ChannelAccessRefused():
            return TopologyMismatch(f"{what}: {text_of(error)}", reply_code=403)
        case aiormq.exceptions.ProbableAuthenticationError() | aiormq.exceptions.AuthenticationError():
            return TransportUnavailable(f"{what}: the broker refused the user or password", retryable=False)
        case aiormq.exceptions.ConnectionNotAllowed():
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
