"""Raw AMQP client: a blocking socket, bytes and frames, no Warren code.

It performs the handshake in one step or step by step, sends methods as pamqp values or as any bytes, and returns what the
broker answers without judging it, so that a test can break the protocol's rules on purpose. `frames` encodes frames by hand.
For tests of a well-behaved client see `blocking_client` and `async_client`.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import NamedTuple, TypeVar
from unittest import mock
from urllib.parse import unquote, urlsplit

from pamqp import base, body, commands, frame, header, heartbeat
from pamqp.common import FieldTable

from tests.support.frames import (
    BASIC_ACK,
    BODY,
    END,
    HEADER,
    HEARTBEAT,
    Content,
    Frame,
    body_frames,
    method,
    publish_frames,
)
from tests.support.polling import PATIENCE

PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
"""First bytes of a client (AMQP 0-9-1 section 4.2.2)."""
FRAME_MAX = 131072
"""Frame size that is tuned if the broker has no limit, in bytes."""

CAPABILITIES: FieldTable = {
    "capabilities": {
        "authentication_failure_close": True,
        "basic.nack": True,
        "connection.blocked": True,
        "consumer_cancel_notify": True,
        "publisher_confirms": True,
    }
}

Answer = TypeVar("Answer", bound=base.Frame)


class Refusal(NamedTuple):
    """Content of a channel.close or connection.close of the broker."""

    scope: str
    """`channel` or `connection`."""
    code: int
    text: str
    method: tuple[int, int]
    """Class and method that failed; (0, 0) if none did."""


class ReceivedMessage(NamedTuple):
    """A message from the broker: the method that carries it, its properties and its body."""

    carrier: base.Frame
    properties: commands.Basic.Properties
    body: bytes


def made(kind: type[Answer], **fields: object) -> Answer:
    """Return a method with these fields, without pamqp's validation, which refuses names that the protocol allows."""
    command = kind()
    for name, value in fields.items():
        setattr(command, name, value)
    return command


def encoded(command: base.Frame, channel: int = 1) -> bytes:
    """Return a method's frame, without pamqp's validation."""
    with mock.patch.object(type(command), "validate"):
        return frame.marshal(command, channel)


def content(
    message: bytes,
    properties: commands.Basic.Properties | None = None,
    *,
    channel: int = 1,
    frame_max: int = 131072,
) -> bytes:
    """Return the header frame and the body frames of a message."""
    head = header.ContentHeader(body_size=len(message), properties=properties or commands.Basic.Properties())
    return frame.marshal(head, channel) + body_frames(channel, message, frame_max)


class RawClient:
    """A blocking connection to the broker of an AMQP URL; every wait has a deadline.

    The constructor opens the socket only: `connect` performs the handshake. Leaving a `with` block drops the socket; see
    `raw_connection` for a block that closes the connection properly.
    """

    def __init__(self, url: str, *, timeout: float = PATIENCE, tls: ssl.SSLContext | None = None) -> None:
        """
        :param timeout: seconds until a wait fails
        :param tls: certificates to trust and to show, for a listener with TLS
        """
        parts = urlsplit(url)
        self.user, self.password = unquote(parts.username or "guest"), unquote(parts.password or "guest")
        self.virtual_host = unquote(parts.path[1:]) or "/"
        self.server: FieldTable = {}
        """Server properties of connection.start."""
        self.frame_max = FRAME_MAX
        """Frame size that `connect` agreed on with the broker, in bytes."""
        self._buffer = b""
        self._position = 0
        self._socket = socket.create_connection((parts.hostname or "127.0.0.1", parts.port or 5672), timeout)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._host = parts.hostname
        if tls is not None:
            self.secure(tls)

    # -- bytes and the socket

    def secure(self, tls: ssl.SSLContext) -> None:
        """Start TLS on the socket."""
        self._socket = tls.wrap_socket(self._socket, server_hostname=self._host)

    def send_bytes(self, data: bytes) -> None:
        self._socket.sendall(data)

    def read_bytes(self, count: int) -> bytes:
        """Return the next bytes.

        :raises ConnectionError: if the broker has closed the socket
        :raises TimeoutError: if they do not arrive in time
        """
        while len(self._buffer) - self._position < count:
            data = self._socket.recv(65536)
            if not data:
                raise ConnectionError("the broker closed the connection")
            self._buffer = self._buffer[self._position :] + data
            self._position = 0
        start = self._position
        self._position += count
        return self._buffer[start : self._position]

    def has_input(self, seconds: float = 0.0) -> bool:
        """Return whether unread bytes are here; wait this long for them."""
        return self._position < len(self._buffer) or bool(select.select([self._socket], [], [], seconds)[0])

    def at_end(self) -> bool:
        """Wait for the next byte or the end; return whether the broker closed the socket without sending more."""
        if self._position < len(self._buffer):
            return False
        try:
            return self._socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def read_frame(self) -> Frame:
        """Return the next frame.

        :raises ConnectionError: if the broker has closed the socket
        :raises TimeoutError: if no frame arrives in time
        """
        kind, channel, size = struct.unpack(">BHL", self.read_bytes(7))
        payload = self.read_bytes(size)
        assert self.read_bytes(1) == bytes([END]), "a frame does not end in 0xCE"
        return Frame(kind, channel, payload)

    def expect_frame(self, *names: tuple[int, int]) -> Frame:
        """Return the next frame that is no heartbeat, which must be one of these methods."""
        found = self.read_frame()
        while found.kind == HEARTBEAT:
            found = self.read_frame()
        assert found.method in names, f"expected {names}, found {found.method}: {found.arguments!r}"
        return found

    def expect_content(self, *names: tuple[int, int]) -> Content:
        """Return the next message as frames; one of these methods must carry it."""
        carrier = self.expect_frame(*names)
        head = self.read_frame()
        assert head.kind == HEADER, head
        size: int = struct.unpack_from(">Q", head.payload, 4)[0]
        found = b""
        while len(found) < size:
            piece = self.read_frame()
            assert piece.kind == BODY, piece
            found += piece.payload
        return Content(carrier, head.payload, found)

    # -- the handshake, step by step

    def greet(self) -> commands.Connection.Start:
        """Send the protocol header; return connection.start."""
        self.send_bytes(PROTOCOL_HEADER)
        start = self.expect(commands.Connection.Start)
        assert isinstance(start.server_properties, dict)
        self.server = start.server_properties
        return start

    def start_ok(
        self, *, mechanism: str = "PLAIN", response: str | None = None, properties: FieldTable | None = None
    ) -> commands.Connection.StartOk:
        """Return a connection.start-ok, with the login of the URL unless `response` is given."""
        login = f"\0{self.user}\0{self.password}" if response is None else response
        return commands.Connection.StartOk(
            CAPABILITIES if properties is None else properties, mechanism, login, "en_US"
        )

    def log_in(self, properties: FieldTable | None = None) -> commands.Connection.Tune:
        """Perform the handshake up to connection.tune, and return that."""
        self.greet()
        self.send(self.start_ok(properties=properties), 0)
        return self.expect(commands.Connection.Tune)

    def tune(self, *, channel_max: int = 2047, frame_max: int = FRAME_MAX, heartbeat: int = 0) -> None:
        self.send(commands.Connection.TuneOk(channel_max, frame_max, heartbeat), 0)

    def connect(
        self,
        *,
        channel_max: int | None = None,
        frame_max: int | None = None,
        heartbeat: int = 0,
        properties: FieldTable | None = None,
    ) -> RawClient:
        """Perform the whole handshake; limits that are not given are the broker's.

        :param properties: client properties; None for the usual ones
        """
        tune = self.log_in(properties)
        self.frame_max = frame_max or tune.frame_max or FRAME_MAX
        self.tune(
            channel_max=(tune.channel_max or 2047) if channel_max is None else channel_max,
            frame_max=self.frame_max,
            heartbeat=heartbeat,
        )
        self.call(commands.Connection.Open(self.virtual_host), 0, commands.Connection.OpenOk)
        return self

    def open(self, channel: int = 1) -> RawClient:
        """Open a channel."""
        self.call(commands.Channel.Open(), channel, commands.Channel.OpenOk)
        return self

    # -- methods as pamqp values

    def send(self, command: base.Frame, channel: int = 1) -> None:
        self.send_bytes(encoded(command, channel))

    def publish(
        self,
        exchange: str,
        routing_key: str,
        message: bytes = b"",
        properties: commands.Basic.Properties | None = None,
        *,
        mandatory: bool = False,
        channel: int = 1,
    ) -> None:
        if properties is None:
            self.send_bytes(
                publish_frames(
                    channel, exchange, routing_key, message, mandatory=mandatory, frame_max=self.frame_max
                )
            )
            return
        command = made(
            commands.Basic.Publish, exchange=exchange, routing_key=routing_key, mandatory=mandatory
        )
        self.send_bytes(encoded(command, channel) + content(message, properties, channel=channel))

    def read(self) -> tuple[int, frame.FrameTypes]:
        """Return the channel and the value of the next frame."""
        head = self.read_bytes(7)
        _, channel, size = struct.unpack(">BHI", head)
        data = head + self.read_bytes(size + 1)
        assert data[-1] == 0xCE, "a frame does not end in 0xCE"
        _, _, found = frame.unmarshal(data)
        return channel, found

    def read_method(self) -> tuple[int, base.Frame]:
        """Return the next frame that is no heartbeat, which must be a method."""
        channel, found = self.read()
        while isinstance(found, heartbeat.Heartbeat):
            channel, found = self.read()
        assert isinstance(found, base.Frame), found
        return channel, found

    def expect(self, kind: type[Answer]) -> Answer:
        """Return the next method, which must be of this kind."""
        _, found = self.read_method()
        assert isinstance(found, kind), f"expected {kind.name}, found {described(found)}"
        return found

    def call(self, command: base.Frame, channel: int, kind: type[Answer]) -> Answer:
        """Send a method and return its answer, which must be of this kind and on this channel."""
        self.send(command, channel)
        number, found = self.read_method()
        assert isinstance(found, kind), f"expected {kind.name}, found {described(found)}"
        assert number == channel
        return found

    def receive_message(self, kind: type[base.Frame]) -> ReceivedMessage:
        """Return the next message, which this method must carry."""
        carrier = self.expect(kind)
        _, head = self.read()
        assert isinstance(head, header.ContentHeader), head
        received = b""
        while len(received) < head.body_size:
            _, piece = self.read()
            assert isinstance(piece, body.ContentBody), piece
            received += piece.value or b""
        properties = head.properties
        assert isinstance(properties, commands.Basic.Properties)
        return ReceivedMessage(carrier, properties, received)

    def refusal(self, channel: int = 1) -> Refusal:
        """Return the next method, which must close this channel or the connection, and answer it."""
        number, found = self.read_method()
        if isinstance(found, commands.Connection.Close):
            assert number == 0
            self.send(commands.Connection.CloseOk(), 0)
            scope = "connection"
        else:
            assert isinstance(found, commands.Channel.Close), f"expected a close, found {described(found)}"
            assert number == channel
            self.send(commands.Channel.CloseOk(), channel)
            scope = "channel"
        return Refusal(
            scope, found.reply_code or 0, found.reply_text, (found.class_id or 0, found.method_id or 0)
        )

    def refused(self, command: base.Frame, channel: int = 1) -> Refusal:
        """Send a method that the broker must refuse; return the refusal."""
        self.send(command, channel)
        return self.refusal(channel)

    def cut_off(self, data: bytes) -> Refusal:
        """Send bytes after which the broker must close the connection, and the socket when it has the answer."""
        self.send_bytes(data)
        found = self.refusal()
        assert found.scope == "connection", found
        assert self.at_end()
        return found

    # -- common methods

    def declare(self, name: str = "", channel: int = 1, **fields: object) -> str:
        """Declare a queue; return its name."""
        command = made(commands.Queue.Declare, queue=name, **fields)
        return self.call(command, channel, commands.Queue.DeclareOk).queue or ""

    def declare_exchange(self, name: str, kind: str = "direct", **fields: object) -> None:
        command = made(commands.Exchange.Declare, exchange=name, exchange_type=kind, **fields)
        self.call(command, 1, commands.Exchange.DeclareOk)

    def bind(self, queue: str, exchange: str, routing_key: str = "", **fields: object) -> None:
        command = made(commands.Queue.Bind, queue=queue, exchange=exchange, routing_key=routing_key, **fields)
        self.call(command, 1, commands.Queue.BindOk)

    def bind_exchange(self, destination: str, source: str, routing_key: str = "") -> None:
        command = made(
            commands.Exchange.Bind, destination=destination, source=source, routing_key=routing_key
        )
        self.call(command, 1, commands.Exchange.BindOk)

    def purge(self, queue: str) -> int:
        """Purge a queue; return how many messages were ready. Earlier publishes on this channel have arrived then."""
        return (
            self.call(made(commands.Queue.Purge, queue=queue), 1, commands.Queue.PurgeOk).message_count or 0
        )

    def declare_queue(self, name: str, **fields: object) -> tuple[str, int, int]:
        """Declare a queue; return its name, its ready messages and its consumers."""
        answer = self.call(made(commands.Queue.Declare, queue=name, **fields), 1, commands.Queue.DeclareOk)
        return answer.queue or "", answer.message_count or 0, answer.consumer_count or 0

    def delete_queue(self, name: str) -> None:
        self.call(made(commands.Queue.Delete, queue=name), 1, commands.Queue.DeleteOk)

    def select_confirms(self, channel: int = 1) -> None:
        self.call(commands.Confirm.Select(), channel, commands.Confirm.SelectOk)

    def await_confirms(self, count: int) -> None:
        """Wait until `count` messages are confirmed.

        RabbitMQ may lose what was sent to a quorum queue and is not confirmed when its channel closes.
        """
        confirmed: set[int] = set()
        while len(confirmed) < count:
            ack = self.expect(commands.Basic.Ack)
            first = 1 if ack.multiple else ack.delivery_tag
            confirmed.update(range(first, ack.delivery_tag + 1))

    def limit_prefetch(self, count: int, channel: int = 1) -> None:
        self.call(commands.Basic.Qos(prefetch_count=count), channel, commands.Basic.QosOk)

    def consume(self, queue: str, *, tag: str = "tag", no_ack: bool = False, channel: int = 1) -> None:
        command = made(commands.Basic.Consume, queue=queue, consumer_tag=tag, no_ack=no_ack)
        self.call(command, channel, commands.Basic.ConsumeOk)

    def ack(self, delivery_tag: int, *, multiple: bool = False, channel: int = 1) -> None:
        # By hand: pamqp takes the tag for a signed number.
        self.send_bytes(method(channel, BASIC_ACK, struct.pack(">QB", delivery_tag, multiple)))

    def sync(self, channel: int = 1) -> None:
        """Wait until the broker has processed all that was sent on this channel; it must not have answered it."""
        self.call(commands.Basic.Qos(prefetch_count=0), channel, commands.Basic.QosOk)

    # -- closing

    def close(self) -> None:
        """Close the connection and wait for its close-ok; other frames that arrive are ignored."""
        self.send(commands.Connection.Close(200, "bye", 0, 0), 0)
        while not isinstance(self.read()[1], commands.Connection.CloseOk):
            pass
        self.abort()

    def hang_up(self) -> None:
        """Shut down both directions. A thread that waits for bytes gets a ConnectionError."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def reset(self) -> None:
        """Close the socket with a TCP reset, so that the broker gets an error instead of the end of the stream."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    def finish(self) -> None:
        """Shut down the sending side and wait until the broker has closed the socket and so released what this client held.

        :raises TimeoutError: if it does not close
        """
        with self._socket, contextlib.suppress(ConnectionError):
            with contextlib.suppress(OSError):  # the broker may have closed first
                self._socket.shutdown(socket.SHUT_WR)
            while self._socket.recv(65536):
                pass

    def abort(self) -> None:
        """Close the socket without connection.close."""
        self._socket.close()

    def __enter__(self) -> RawClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.abort()


@contextmanager
def raw_connection(url: str) -> Iterator[RawClient]:
    """Connect; close the connection properly at the end of the block, or drop the socket if the block raises."""
    client = RawClient(url)
    try:
        yield client.connect()
        client.close()
    except BaseException:
        client.abort()
        raise


def described(found: base.Frame) -> str:
    return f"{found.name} {dict(found)}"
