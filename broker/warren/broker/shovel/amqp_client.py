"""AMQP client of shovels and migrations: a connection to another broker, or to this one without a socket."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import ssl
import struct
from collections.abc import Callable
from typing import Final, TypeAlias, cast

from warren.broker.access.internal_login import internal_login
from warren.broker.access.login_chain import Login
from warren.broker.connection.broker_node import BrokerNode
from warren.broker.connection.in_process import connect_in_process
from warren.broker.shovel.shovel_uri import ShovelUri
from warren.wire import field_tables, methods
from warren.wire.delivery_scanner import ChannelListener, DeliveryScanner, StreamError
from warren.wire.reply_codes import Reply

logger = logging.getLogger(__name__)

PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"
HEARTBEAT_FRAME: Final = b"\x08\x00\x00\x00\x00\x00\x00\xce"
CHANNEL: Final = 1
"""Channel that messages pass through."""
PROBE_CHANNEL: Final = 2
"""Channel of checks that may close it, such as the passive declaration of a queue that does not exist."""
FRAME_MAX: Final = 131072
"""Largest frame in bytes that the client proposes."""
READ_SIZE: Final = 32 * 1024
"""Bytes that are read at once, so that other clients of the broker get their turns."""
WRITE_BUFFER_HIGH: Final = 256 * 1024
"""Bytes that wait to be sent above which `writing_paused` is set."""
CLOSE_SECONDS: Final = 3.0
"""Seconds that the other broker has to answer connection.close."""
REPLY_SECONDS: Final = 60.0
"""Seconds that the other broker has to answer a method."""

_FRAME: Final = struct.Struct(">BHI")


class ConnectionEnded(Exception):
    """The connection could not be opened, or has ended. The text is one line: the reason, without credentials."""


class ChannelClosed(ConnectionEnded):
    """The other broker has closed a channel with an error.

    :param code: reply code of the error.
    """

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


WaitingReply: TypeAlias = "tuple[str, asyncio.Future[methods.Arguments]]"


class AmqpClient(asyncio.BufferedProtocol):
    """One connection with the channel CHANNEL open. Its user may open more channels.

    :param name: name of the connection that the other broker lists.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str) -> None:
        self.frame_max = FRAME_MAX
        self.channel_max = 0
        """Largest channel number that the other broker accepts."""
        self.ended: asyncio.Future[str] = loop.create_future()
        """Resolved with the reason when the connection has ended, or a channel was closed while no call waited on it."""
        self.blocked_reason: str | None = None
        """Reason of connection.blocked; None if the connection is not blocked."""
        self.writing_paused = False
        """True while more than WRITE_BUFFER_HIGH bytes wait to be sent."""
        self.on_flow: Callable[[], None] = _nothing
        """Called when `blocked_reason` or `writing_paused` has changed."""
        self._loop = loop
        self._name = name
        self._transport: asyncio.Transport | None = None
        self._scanner = DeliveryScanner(self)
        self._waiting: dict[int, WaitingReply] = {}
        self._out: list[bytes] = []
        self._flush_scheduled = False
        self._read_buffer = bytearray(READ_SIZE)
        self._heartbeat = 0
        self._has_received = self._has_sent = False
        self._missed = 0
        self._timer: asyncio.TimerHandle | None = None

    # -- opening

    async def open(self, node: BrokerNode, uri: ShovelUri, *, in_process: bool) -> None:
        """Connect, log in, and open the channel.

        :param in_process: True to connect to this broker whatever host the URI names.
        :raises ConnectionEnded: if that is refused, or takes too long.
        """
        await self._open(uri, node if uri.is_direct or in_process else None)

    async def connect(self, uri: ShovelUri) -> None:
        """Connect to the host that the URI names, log in, and open the channel.

        :raises ConnectionEnded: if that is refused, or takes too long.
        """
        await self._open(uri, None)

    async def _open(self, uri: ShovelUri, node: BrokerNode | None) -> None:
        try:
            async with asyncio.timeout(uri.connection_timeout):
                if node is not None:
                    connect_in_process(node, self, _passwordless_login(node, uri))
                else:
                    await self._connect(uri)
                await self._handshake(uri)
                await self.call("channel.open", b"")
        except TimeoutError:
            self._end("the connection attempt timed out")
            raise ConnectionEnded("the connection attempt timed out") from None
        except UnicodeError:
            self._end("the name of the host is not valid")
            raise ConnectionEnded("the name of the host is not valid") from None
        except OSError as error:
            self._end(str(error))
            raise ConnectionEnded(_describe(error)) from None
        except BaseException:
            self._end("the connection attempt failed")
            raise

    async def _connect(self, uri: ShovelUri) -> None:
        context, server_name = None, None
        if uri.tls:
            context, server_name = await self._loop.run_in_executor(None, _tls_context, uri)
        await self._loop.create_connection(
            lambda: self, uri.host, uri.port, ssl=context, server_hostname=server_name
        )

    async def _handshake(self, uri: ShovelUri) -> None:
        self.write(PROTOCOL_HEADER)
        await self._expect(0, "connection.start")
        properties = field_tables.encode(
            {
                "product": "Warren",
                "platform": "Python",
                "connection_name": self._name,
                "capabilities": {
                    "publisher_confirms": True,
                    "basic.nack": True,
                    "consumer_cancel_notify": True,
                    "connection.blocked": True,
                    "authentication_failure_close": True,
                },
            }
        )
        mechanism, response = b"PLAIN", b"\0".join((b"", _encoded(uri.user), _encoded(uri.password)))
        if uri.query.get("auth_mechanism") == "external":
            mechanism, response = b"EXTERNAL", b""
        self.send("connection.start-ok", properties, mechanism, response, b"en_US", channel=0)
        tune = await self._expect(0, "connection.tune")
        self.frame_max = min(tune.number("frame_max") or FRAME_MAX, FRAME_MAX)
        self._scanner.limit = self.frame_max
        offered = tune.number("heartbeat")
        wanted = 0 if uri.is_direct else uri.heartbeat
        self._heartbeat = min(wanted, offered) if wanted and offered else wanted and offered
        channels = tune.number("channel_max")
        self.channel_max = channels or 0xFFFF
        self.send("connection.tune-ok", channels, self.frame_max, self._heartbeat, channel=0)
        await self.call(
            "connection.open", uri.virtual_host.encode("utf-8", "surrogateescape"), b"", False, channel=0
        )
        if self._heartbeat:
            self._timer = self._loop.call_later(self._heartbeat / 2, self._beat)

    # -- methods

    def listen(self, listener: ChannelListener, channel: int = CHANNEL) -> None:
        """Pass the messages and publisher confirms of a channel to a listener from now on."""
        self._scanner.open(channel, listener)

    def send(self, name: str, *values: methods.Argument, channel: int = CHANNEL) -> None:
        """Send a method that has no reply, or whose reply `call` awaits."""
        self.write(methods.frame(channel, name, *values))

    async def call(self, name: str, *values: methods.Argument, channel: int = CHANNEL) -> methods.Arguments:
        """Send a method, and return the arguments of its `-ok`.

        :raises ChannelClosed: if the other broker closes the channel instead.
        :raises ConnectionEnded: if the connection ends, or there is no answer.
        """
        self.send(name, *values, channel=channel)
        return await self._expect(channel, f"{name}-ok")

    async def call_apart(self, name: str, *values: methods.Argument) -> methods.Arguments:
        """Call a method on a channel of its own, which an error may close.

        :raises ChannelClosed: if the other broker refuses it.
        :raises ConnectionEnded: if the connection ends, or there is no answer.
        """
        await self.call("channel.open", b"", channel=PROBE_CHANNEL)
        reply = await self.call(name, *values, channel=PROBE_CHANNEL)
        await self.call("channel.close", int(Reply.SUCCESS), b"", 0, 0, channel=PROBE_CHANNEL)
        return reply

    async def _expect(self, channel: int, name: str) -> methods.Arguments:
        if self.ended.done():
            raise ConnectionEnded(self.ended.result())
        reply: asyncio.Future[methods.Arguments] = self._loop.create_future()
        self._waiting[channel] = (name, reply)
        try:
            async with asyncio.timeout(REPLY_SECONDS):
                return await reply
        except TimeoutError:
            raise ConnectionEnded(f"no {name} within {REPLY_SECONDS:.0f} s") from None
        finally:
            self._waiting.pop(channel, None)

    async def close(self, reason: str = "the shovel ends") -> None:
        """Close the connection after all output, and wait for connection.close-ok: then all earlier frames are processed.

        :param reason: text for the log of the other broker.
        """
        if not self.ended.done() and self._transport is not None:
            with contextlib.suppress(ConnectionEnded, TimeoutError):
                async with asyncio.timeout(CLOSE_SECONDS):
                    await self.call("connection.close", int(Reply.SUCCESS), reason.encode(), 0, 0, channel=0)
        self._end(reason)

    # -- output

    def write(self, data: bytes) -> None:
        """Append encoded frames to the output, which is sent in the next turn of the event loop."""
        self._out.append(data)
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        data = b"".join(self._out)
        self._out.clear()
        if self._transport is not None and not self._transport.is_closing():
            self._has_sent = True
            self._transport.write(data)

    def pause_reading(self) -> None:
        """Read nothing, so that the other broker sends no more messages."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read again."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    # -- protocol of asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # The transports of uvloop have the methods of asyncio.Transport, but are no subclass.
        stream = cast(asyncio.Transport, transport)
        stream.set_write_buffer_limits(high=WRITE_BUFFER_HIGH)
        self._transport = stream
        if self.ended.done():
            stream.abort()

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._read_buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(bytes(self._read_buffer[:nbytes]))

    def data_received(self, data: bytes) -> None:
        """Process received bytes."""
        if self.ended.done():
            return
        self._has_received = True
        try:
            self._process(self._scanner.feed(data))
        except StreamError as error:
            self._end(str(error))
        except Exception:
            logger.exception("event=shovel.connection_crashed connection=%r", self._name)
            self._end("internal error")

    def pause_writing(self) -> None:
        self.writing_paused = True
        self.on_flow()

    def resume_writing(self) -> None:
        self.writing_paused = False
        self.on_flow()

    def eof_received(self) -> None:
        return None

    def connection_lost(self, error: Exception | None) -> None:
        self._end(_describe(error) if isinstance(error, OSError) else "the connection was lost")

    # -- interface of the scanner

    def blocked(self, reason: str | None) -> None:
        """Receive the reason of connection.blocked, or None for connection.unblocked."""
        self.blocked_reason = reason
        self.on_flow()

    # -- input

    def _process(self, frames: bytes) -> None:
        position = 0
        if frames.startswith(b"AMQP"):
            self._end("the server does not support AMQP 0-9-1")
            return
        while position < len(frames):
            kind, channel, size = _FRAME.unpack_from(frames, position)
            payload = frames[position + 7 : position + 7 + size]
            position += size + 8
            method = methods.BY_ID.get(int.from_bytes(payload[:4], "big")) if kind == 1 else None
            if method is not None:
                self._process_method(channel, method, payload)

    def _process_method(self, channel: int, method: methods.Method, payload: bytes) -> None:
        arguments = methods.decode(method, payload)
        if method.name == "connection.close":
            self.send("connection.close-ok", channel=0)
            self._flush()
            self._end(_reply_text(arguments))
            return
        waiting = self._waiting.get(channel)
        if method.name == "channel.close":
            self.send("channel.close-ok", channel=channel)
            if waiting is not None and not waiting[1].done():
                closed = ChannelClosed(arguments.number("reply_code"), _reply_text(arguments))
                waiting[1].set_exception(closed)
            if channel == CHANNEL or waiting is None:
                self._flush()
                self._end(_reply_text(arguments))
        elif method.name == "basic.cancel":
            self._end("the consumer was cancelled: its queue is gone")
        elif waiting is not None and waiting[0] == method.name and not waiting[1].done():
            waiting[1].set_result(arguments)

    # -- heartbeats and the end

    def _beat(self) -> None:
        self._timer = self._loop.call_later(self._heartbeat / 2, self._beat)
        transport = self._transport
        if not self._has_sent and transport is not None and not transport.get_write_buffer_size():
            self.write(HEARTBEAT_FRAME)
        reading = transport is not None and transport.is_reading()
        self._missed = 0 if self._has_received or not reading else self._missed + 1
        self._has_received = self._has_sent = False
        if self._missed > 4:
            self._end("heartbeat timeout")

    def _end(self, reason: str) -> None:
        """End the connection, if it has not ended yet."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self.ended.done():
            self.ended.set_result(reason)
            for _, reply in self._waiting.values():
                if not reply.done():
                    reply.set_exception(ConnectionEnded(reason))
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()
            self._loop.call_later(CLOSE_SECONDS, self._transport.abort)


def _nothing() -> None:
    return


def _encoded(text: str | None) -> bytes:
    return b"guest" if text is None else text.encode("utf-8", "surrogateescape")


def _passwordless_login(node: BrokerNode, uri: ShovelUri) -> Login | None:
    """Return the login of a URI that means this broker and needs no password; None if the client has to send one.

    Only the virtual hosts of URIs without a host are checked when a shovel is defined. With a host, as the protocol
    `local` allows, a password is needed.

    :raises ConnectionEnded: if there is no such user.
    """
    if not uri.is_direct or uri.password is not None:
        return None
    if uri.user is None:
        return internal_login(node.access)
    found = node.logins.internal.find(uri.user)
    if found is None:
        raise ConnectionEnded(f"there is no user {uri.user!r}")
    return found


def _tls_context(uri: ShovelUri) -> tuple[ssl.SSLContext, str]:
    """Return the TLS context of a URI, and the name that the server's certificate must have.

    Unlike in RabbitMQ, the server's certificate is verified unless `verify=verify_none` says otherwise.

    :raises OSError: if a file cannot be read or used.
    """
    query = uri.query
    context = ssl.create_default_context(cafile=query.get("cacertfile"))
    if query.get("verify") == "verify_none":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if "certfile" in query:
        context.load_cert_chain(query["certfile"], query.get("keyfile"), query.get("password", ""))
    name = query.get("server_name_indication", uri.host)
    if name == "disable":
        context.check_hostname = False
        name = uri.host
    return context, name


def _describe(error: OSError) -> str:
    """Return one line about a failure to connect, or the loss of a connection."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the server's certificate is refused: {error.verify_message}"
    name = errno.errorcode.get(error.errno or 0, "")
    text = error.strerror or str(error) or type(error).__name__
    return f"{text} ({name})" if name else text


def _reply_text(arguments: methods.Arguments) -> str:
    return arguments.data("reply_text").decode(errors="replace")
