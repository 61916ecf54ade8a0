"""A client that may misbehave: commands as pamqp values or raw bytes, and every answer looked at.

`frames.RawClient` is for conversations that go well; this one also plays the handshake step by step, breaks rules on
purpose, and reads what the broker thinks of it.
"""

from __future__ import annotations

import ssl
import struct
from types import TracebackType
from typing import NamedTuple, TypeVar
from unittest import mock

from pamqp import base, body, commands, frame, header, heartbeat
from pamqp.common import FieldTable

from tests.support.frames import body_frames
from tests.support.link import GREETING, Link

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
    """A channel.close or connection.close of the broker."""

    scope: str
    """`channel` or `connection`."""
    code: int
    text: str
    method: tuple[int, int]
    """Class and method that failed; (0, 0) if none did."""


class Given(NamedTuple):
    """A message that the broker sent: its carrying method, its properties and its body."""

    carrier: base.Frame
    properties: commands.Basic.Properties
    body: bytes


def made(kind: type[Answer], **fields: object) -> Answer:
    """A command with these fields, which pamqp does not get to judge: it insists on names that the protocol does not."""
    command = kind()
    for name, value in fields.items():
        setattr(command, name, value)
    return command


def encoded(command: base.Frame, channel: int = 1) -> bytes:
    with mock.patch.object(type(command), "validate"):
        return frame.marshal(command, channel)


def content(
    message: bytes,
    properties: commands.Basic.Properties | None = None,
    *,
    channel: int = 1,
    frame_max: int = 131072,
) -> bytes:
    """The header frame and the body frames of a message."""
    head = header.ContentHeader(body_size=len(message), properties=properties or commands.Basic.Properties())
    return frame.marshal(head, channel) + body_frames(channel, message, frame_max)


class Peer(Link):
    """A blocking connection; every wait has a deadline of `timeout` seconds."""

    def __init__(self, url: str, *, timeout: float = 60.0, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(url, timeout=timeout, tls=tls)
        self.server: FieldTable = {}
        """What connection.start said of the server."""

    # -- the handshake, a step at a time

    def greet(self) -> commands.Connection.Start:
        self.send_bytes(GREETING)
        start = self.expect(commands.Connection.Start)
        assert isinstance(start.server_properties, dict)
        self.server = start.server_properties
        return start

    def start_ok(
        self, *, mechanism: str = "PLAIN", response: str | None = None, properties: FieldTable | None = None
    ) -> commands.Connection.StartOk:
        login = f"\0{self.user}\0{self.password}" if response is None else response
        return commands.Connection.StartOk(
            CAPABILITIES if properties is None else properties, mechanism, login, "en_US"
        )

    def log_in(self) -> commands.Connection.Tune:
        self.greet()
        self.send(self.start_ok(), 0)
        return self.expect(commands.Connection.Tune)

    def tune(self, *, channel_max: int = 2047, frame_max: int = 131072, heartbeat: int = 0) -> None:
        self.send(commands.Connection.TuneOk(channel_max, frame_max, heartbeat), 0)

    def connect(self, *, channel_max: int = 2047, frame_max: int = 131072, heartbeat: int = 0) -> Peer:
        """The whole handshake."""
        self.log_in()
        self.tune(channel_max=channel_max, frame_max=frame_max, heartbeat=heartbeat)
        self.call(commands.Connection.Open(self.virtual_host), 0, commands.Connection.OpenOk)
        return self

    def open(self, channel: int = 1) -> Peer:
        self.call(commands.Channel.Open(), channel, commands.Channel.OpenOk)
        return self

    # -- saying and hearing

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
        method = made(commands.Basic.Publish, exchange=exchange, routing_key=routing_key, mandatory=mandatory)
        self.send_bytes(encoded(method, channel) + content(message, properties, channel=channel))

    def read(self) -> tuple[int, frame.FrameTypes]:
        """The next frame and its channel."""
        head = self.read_bytes(7)
        _, channel, size = struct.unpack(">BHI", head)
        data = head + self.read_bytes(size + 1)
        assert data[-1] == 0xCE, "a frame does not end in 0xCE"
        _, _, found = frame.unmarshal(data)
        return channel, found

    def read_method(self) -> tuple[int, base.Frame]:
        """The next frame but heartbeats, which has to be a method."""
        channel, found = self.read()
        while isinstance(found, heartbeat.Heartbeat):
            channel, found = self.read()
        assert isinstance(found, base.Frame), found
        return channel, found

    def expect(self, kind: type[Answer]) -> Answer:
        """The next method, which has to be of this kind."""
        _, found = self.read_method()
        assert isinstance(found, kind), f"expected {kind.name}, found {described(found)}"
        return found

    def call(self, command: base.Frame, channel: int, kind: type[Answer]) -> Answer:
        """Send a command and read its answer, which has to be of this kind and on this channel."""
        self.send(command, channel)
        number, found = self.read_method()
        assert isinstance(found, kind), f"expected {kind.name}, found {described(found)}"
        assert number == channel
        return found

    def given(self, kind: type[base.Frame]) -> Given:
        """The next message, carried by this method."""
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
        return Given(carrier, properties, received)

    def refusal(self, channel: int = 1) -> Refusal:
        """The next method, which has to close this channel or the connection; it is answered."""
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
        """Send what the broker has to refuse."""
        self.send(command, channel)
        return self.refusal(channel)

    def cut_off(self, data: bytes) -> Refusal:
        """Send bytes after which the broker closes the connection, and the socket when it has its answer."""
        self.send_bytes(data)
        found = self.refusal()
        assert found.scope == "connection", found
        assert self.at_end()
        return found

    # -- what most tests begin with

    def declare(self, name: str = "", channel: int = 1, **fields: object) -> str:
        """queue.declare: the name that the broker answers."""
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
        """How many messages were ready. What was published to it on this channel before has arrived."""
        return (
            self.call(made(commands.Queue.Purge, queue=queue), 1, commands.Queue.PurgeOk).message_count or 0
        )

    def sync(self, channel: int = 1) -> None:
        """Wait until the broker has worked off what was sent on this channel, and has said nothing about it."""
        self.call(commands.Basic.Qos(prefetch_count=0), channel, commands.Basic.QosOk)

    # -- the end

    def close(self) -> None:
        """connection.close and its answer; what else arrives meanwhile is dropped."""
        self.send(commands.Connection.Close(200, "bye", 0, 0), 0)
        while not isinstance(self.read()[1], commands.Connection.CloseOk):
            pass
        self.abort()

    def __enter__(self) -> Peer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.abort()


def described(found: base.Frame) -> str:
    return f"{found.name} {dict(found)}"
