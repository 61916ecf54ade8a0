"""Blocking AMQP connection with one channel: handshake and synchronous methods.

Benchmarks, `warren bench` and Spark tasks use it for handshake and declarations, then read and write frames on its
socket themselves.
"""

from __future__ import annotations

import socket
import ssl
import struct
from typing import NamedTuple

from warren.wire import field_tables, methods
from warren.wire.amqp_url import AmqpUrl
from warren.wire.reply_codes import Reply

CHANNEL = 1
"""Number of the only channel of the connection."""

FRAME_MAX = 131072
"""Largest frame that the connection accepts, in bytes."""
_FRAME = struct.Struct(">BHI")
_REFUSALS = (Reply.ACCESS_REFUSED, Reply.NOT_FOUND, Reply.RESOURCE_LOCKED, Reply.PRECONDITION_FAILED)


class ClosedByBroker(Exception):
    """Error that the broker has closed the channel or the connection.

    :param code: reply code of the close method
    :param text: its reply text
    """

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"the broker answered {code} {text}")
        self.code = code
        self.text = text

    @property
    def is_client_error(self) -> bool:
        """True if the request is wrong (a wrong password, other queue arguments), False if the broker has a problem."""
        return self.code in _REFUSALS or self.code == Reply.NOT_ALLOWED


class FetchedDelivery(NamedTuple):
    """Message fetched with basic.get, as a delivery."""

    frames: bytes
    """Frames of a basic.deliver with an empty consumer tag, for the parsers of deliveries."""
    remaining: int
    """Number of ready messages in the queue after it."""


class BlockingConnection:
    """Blocking AMQP connection with one open channel."""

    def __init__(
        self,
        url: AmqpUrl,
        timeout: float = 10.0,
        product: str = "warren",
        *,
        context: ssl.SSLContext | None = None,
        heartbeat: int = 0,
    ) -> None:
        """
        :param timeout: seconds for connecting and for each reply of the broker
        :param product: `product` of the client properties
        :param context: TLS context for an `amqps` URL; by default the system's certificate authorities are trusted
        :param heartbeat: heartbeat timeout in seconds to propose; 0 is none. The caller has to send the heartbeats
        :raises OSError: if the broker cannot be reached or does not answer
        :raises ClosedByBroker: if the broker refuses the user or the virtual host
        """
        self.socket = socket.create_connection((url.host, url.port), timeout)
        self.buffer = b""
        self.frame_max = FRAME_MAX
        self.heartbeat = 0
        """Negotiated heartbeat timeout in seconds; 0 is none. A client silent for twice as long is disconnected."""
        self.server_product = ""
        """Name of the broker's software, from its server properties: `RabbitMQ` or `Warren`; empty if it sends none."""
        try:
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if url.tls:
                context = context or ssl.create_default_context()
                self.socket = context.wrap_socket(self.socket, server_hostname=url.host)
            self._handshake(url, product, heartbeat)
            self.call("channel.open", b"", channel=CHANNEL)
        except BaseException:
            self.socket.close()
            raise

    def _handshake(self, url: AmqpUrl, product: str, heartbeat: int) -> None:
        self.socket.sendall(b"AMQP\x00\x00\x09\x01")
        start = self.expect("connection.start")
        self.server_product = str(field_tables.decode(start.data("server_properties")).get("product", ""))
        # Without authentication_failure_close the broker answers a wrong password by closing the socket
        # (https://www.rabbitmq.com/docs/auth-notification).
        client = field_tables.encode(
            {
                "product": product,
                "capabilities": {
                    "authentication_failure_close": True,
                    "consumer_cancel_notify": True,
                    "connection.blocked": True,
                },
            }
        )
        login = b"\0" + url.user.encode() + b"\0" + url.password.encode()
        self.send("connection.start-ok", client, b"PLAIN", login, b"en_US", channel=0)
        tune = self.expect("connection.tune")
        self.frame_max = min(tune.number("frame_max") or FRAME_MAX, FRAME_MAX)
        self.heartbeat = min(heartbeat, tune.number("heartbeat") or heartbeat)
        limits = tune.number("channel_max"), self.frame_max, self.heartbeat
        self.send("connection.tune-ok", *limits, channel=0)
        self.call("connection.open", url.virtual_host.encode(), b"", False, channel=0)

    def send(self, name: str, *values: methods.Argument, channel: int = CHANNEL) -> None:
        """Send a method frame.

        :param name: name of the method, such as `queue.declare`
        :param values: its arguments, in the order of the specification
        :param channel: number of the channel; 0 for methods of the connection itself
        """
        self.socket.sendall(methods.frame(channel, name, *values))

    def call(self, name: str, *values: methods.Argument, channel: int = CHANNEL) -> methods.Arguments:
        """Send a method, wait for its `-ok` and return the arguments of that.

        :param name: name of the method, such as `queue.declare`
        :param values: its arguments, in the order of the specification
        :param channel: number of the channel; 0 for methods of the connection itself
        :raises ClosedByBroker: if the broker closes the channel or the connection instead
        """
        self.send(name, *values, channel=channel)
        return self.expect(f"{name}-ok")

    def get(self, queue: bytes) -> FetchedDelivery | None:
        """Fetch the next message of a queue, which must be acknowledged; return None if the queue has none.

        :raises ClosedByBroker: if the broker closes the channel or the connection instead
        """
        self.send("basic.get", 0, queue, False)
        name, arguments = self._expect_one_of("basic.get-ok", "basic.get-empty")
        if name == "basic.get-empty":
            return None
        fields = [arguments[field] for field in ("delivery_tag", "redelivered", "exchange", "routing_key")]
        frames, missing = methods.frame(CHANNEL, "basic.deliver", b"", *fields), -1
        while missing:
            kind, channel, payload = self._read()
            frame = _FRAME.pack(kind, channel, len(payload)) + payload + b"\xce"
            if channel != CHANNEL:
                self.raise_if_closed(frame)
                continue
            frames += frame
            missing = int.from_bytes(payload[4:12], "big") if kind == 2 else missing - len(payload)
        return FetchedDelivery(frames, arguments.number("message_count"))

    def expect(self, name: str) -> methods.Arguments:
        """Receive frames until a method of this name arrives, and return its arguments. Other frames are dropped.

        :raises ClosedByBroker: if the broker closes the channel or the connection instead
        """
        return self._expect_one_of(name)[1]

    def _expect_one_of(self, *names: str) -> tuple[str, methods.Arguments]:
        """Receive frames until a method with one of these names arrives, and return its name and its arguments."""
        while True:
            kind, _, payload = self._read()
            if kind != 1:
                continue
            method = methods.BY_ID.get(int.from_bytes(payload[:4], "big"))
            if method is None:
                continue
            arguments = methods.decode(method, payload)
            if method.name in names:
                return method.name, arguments
            raise_if_close(method.name, arguments)

    def raise_if_closed(self, frame: bytes) -> None:
        """Raise an error if a frame that the caller did not expect closes the channel or connection; ignore any other.

        :raises ClosedByBroker: if the frame closes the channel or the connection
        """
        method = methods.BY_ID.get(int.from_bytes(frame[7:11], "big")) if frame[0] == 1 else None
        if method is not None:
            raise_if_close(method.name, methods.decode(method, frame[7:-1]))

    def reopen(self) -> None:
        """Open the channel again after the broker closed it."""
        self.send("channel.close-ok")
        self.call("channel.open", b"")

    def close(self) -> None:
        """Close the connection, and wait for connection.close-ok: then the broker has processed all earlier frames."""
        try:
            self.call("connection.close", int(Reply.SUCCESS), b"done", 0, 0, channel=0)
        finally:
            self.socket.close()

    def _read(self) -> tuple[int, int, bytes]:
        while len(self.buffer) < 7:
            self._more()
        kind, channel, size = _FRAME.unpack_from(self.buffer)
        while len(self.buffer) < size + 8:
            self._more()
        payload = self.buffer[7 : 7 + size]
        self.buffer = self.buffer[size + 8 :]
        return kind, channel, payload

    def _more(self) -> None:
        data = self.socket.recv(1 << 16)
        if not data:
            raise ConnectionError("the broker closed the connection")
        if not self.buffer and data.startswith(b"AMQP"):
            raise ConnectionError("the server does not support AMQP 0-9-1")
        self.buffer += data


def raise_if_close(name: str, arguments: methods.Arguments) -> None:
    """Raise an error if a received method, given by name and arguments, closes the channel or the connection.

    :raises ClosedByBroker: if the method is channel.close or connection.close
    """
    if name in ("channel.close", "connection.close"):
        text = arguments.data("reply_text").decode(errors="replace")
        raise ClosedByBroker(arguments.number("reply_code"), text)
