"""An AMQP 0-9-1 client of hand-written frames over a plain socket: the standard library, and no Warren code.

What a test says with it is what stands in the specification; so it judges `warren.wire` too.
"""

from __future__ import annotations

import struct
from types import TracebackType
from typing import NamedTuple

from tests.support.link import GREETING, Link

METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
END = 0xCE

CONNECTION_START, CONNECTION_START_OK = (10, 10), (10, 11)
CONNECTION_TUNE, CONNECTION_TUNE_OK = (10, 30), (10, 31)
CONNECTION_OPEN, CONNECTION_OPEN_OK = (10, 40), (10, 41)
CONNECTION_CLOSE, CONNECTION_CLOSE_OK = (10, 50), (10, 51)
CHANNEL_OPEN, CHANNEL_OPEN_OK = (20, 10), (20, 11)
CHANNEL_CLOSE, CHANNEL_CLOSE_OK = (20, 40), (20, 41)
EXCHANGE_DECLARE, EXCHANGE_DECLARE_OK = (40, 10), (40, 11)
QUEUE_DECLARE, QUEUE_DECLARE_OK = (50, 10), (50, 11)
QUEUE_BIND, QUEUE_BIND_OK = (50, 20), (50, 21)
QUEUE_DELETE, QUEUE_DELETE_OK = (50, 40), (50, 41)
BASIC_QOS, BASIC_QOS_OK = (60, 10), (60, 11)
BASIC_CONSUME, BASIC_CONSUME_OK = (60, 20), (60, 21)
BASIC_PUBLISH = (60, 40)
BASIC_RETURN = (60, 50)
BASIC_DELIVER = (60, 60)
BASIC_GET, BASIC_GET_OK, BASIC_GET_EMPTY = (60, 70), (60, 71), (60, 72)
BASIC_ACK = (60, 80)
BASIC_NACK = (60, 120)
CONFIRM_SELECT, CONFIRM_SELECT_OK = (85, 10), (85, 11)


class Frame(NamedTuple):
    """One frame as it stands on the wire."""

    kind: int
    channel: int
    payload: bytes

    @property
    def method(self) -> tuple[int, int]:
        """Class and method of a method frame."""
        assert self.kind == METHOD, self
        class_id, method_id = struct.unpack_from(">HH", self.payload)
        return class_id, method_id

    @property
    def arguments(self) -> bytes:
        return self.payload[4:]


class Content(NamedTuple):
    """A method that carries a message (deliver, get-ok, return), its raw header payload and its body."""

    frame: Frame
    header: bytes
    body: bytes


def frame(kind: int, channel: int, payload: bytes, end: int = END) -> bytes:
    return struct.pack(">BHL", kind, channel, len(payload)) + payload + bytes([end])


def body_frames(channel: int, body: bytes, frame_max: int) -> bytes:
    """A body, cut into frames of at most `frame_max` bytes."""
    room = frame_max - 8
    return b"".join(frame(BODY, channel, body[at : at + room]) for at in range(0, len(body), room))


def method(channel: int, name: tuple[int, int], arguments: bytes = b"") -> bytes:
    return frame(METHOD, channel, struct.pack(">HH", *name) + arguments)


def short(text: str) -> bytes:
    """A short string."""
    data = text.encode()
    return bytes([len(data)]) + data


def long(data: bytes) -> bytes:
    """A long string, or a table that is already encoded."""
    return struct.pack(">L", len(data)) + data


def read_short(data: bytes, position: int) -> tuple[str, int]:
    """The short string at `position`, and the position after it."""
    end = position + 1 + data[position]
    return data[position + 1 : end].decode(), end


def publish_frames(
    channel: int,
    exchange: str,
    key: str,
    body: bytes,
    *,
    mandatory: bool = False,
    persistent: bool = False,
    frame_max: int = 131072,
) -> bytes:
    """basic.publish, its header and its body, cut into frames of at most `frame_max` bytes."""
    flags, properties = (0x1000, b"\x02") if persistent else (0, b"")
    head = struct.pack(">HHQH", 60, 0, len(body), flags) + properties
    arguments = b"\0\0" + short(exchange) + short(key) + bytes([mandatory])
    opening = method(channel, BASIC_PUBLISH, arguments) + frame(HEADER, channel, head)
    return opening + body_frames(channel, body, frame_max)


class RawClient(Link):
    """A blocking connection with one frame after another; every wait has a deadline of `timeout` seconds."""

    def __init__(
        self, url: str, *, heartbeat: int = 0, timeout: float = 60.0, properties: bytes = b""
    ) -> None:
        """:param properties: the client's properties, an encoded table without its length"""
        super().__init__(url, timeout=timeout)
        self.frame_max = 131072
        self.properties = properties
        self._handshake(heartbeat)

    def _handshake(self, heartbeat: int) -> None:
        self.send(GREETING)
        self.start = self.expect(CONNECTION_START)
        login = f"\0{self.user}\0{self.password}".encode()
        self.send(
            method(
                0, CONNECTION_START_OK, long(self.properties) + short("PLAIN") + long(login) + short("en_US")
            )
        )
        channel_max, frame_max, _ = struct.unpack(">HLH", self.expect(CONNECTION_TUNE).arguments)
        self.frame_max = frame_max or self.frame_max
        self.send(method(0, CONNECTION_TUNE_OK, struct.pack(">HLH", channel_max, self.frame_max, heartbeat)))
        self.send(method(0, CONNECTION_OPEN, short(self.virtual_host) + short("") + b"\0"))
        self.expect(CONNECTION_OPEN_OK)

    def send(self, data: bytes) -> None:
        self.send_bytes(data)

    def call(self, channel: int, name: tuple[int, int], arguments: bytes = b"") -> Frame:
        """Send a method and return its `-ok`, which has the next method number."""
        self.send(method(channel, name, arguments))
        return self.expect((name[0], name[1] + 1))

    def read(self) -> Frame:
        """The next frame.

        :raises ConnectionError: if the peer has closed
        :raises TimeoutError: if none comes in time
        """
        kind, channel, size = struct.unpack(">BHL", self.read_bytes(7))
        payload = self.read_bytes(size)
        assert self.read_bytes(1) == bytes([END]), "a frame does not end in 0xCE"
        return Frame(kind, channel, payload)

    def expect(self, *names: tuple[int, int]) -> Frame:
        """The next frame but heartbeats, which must be one of these methods."""
        found = self.read()
        while found.kind == HEARTBEAT:
            found = self.read()
        assert found.method in names, f"expected {names}, found {found.method}: {found.arguments!r}"
        return found

    def content(self, *names: tuple[int, int]) -> Content:
        """The next message: its method, which must be one of `names`, header and whole body."""
        carrier = self.expect(*names)
        head = self.read()
        assert head.kind == HEADER, head
        size: int = struct.unpack_from(">Q", head.payload, 4)[0]
        body = b""
        while len(body) < size:
            piece = self.read()
            assert piece.kind == BODY, piece
            body += piece.payload
        return Content(carrier, head.payload, body)

    def open_channel(self, channel: int = 1) -> None:
        self.call(channel, CHANNEL_OPEN, short(""))

    def declare_queue(
        self,
        name: str,
        *,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        channel: int = 1,
    ) -> tuple[str, int, int]:
        """queue.declare: the name, the count of messages, the count of consumers that the broker answers."""
        flags = durable << 1 | exclusive << 2 | auto_delete << 3
        reply = self.call(channel, QUEUE_DECLARE, b"\0\0" + short(name) + bytes([flags]) + long(b""))
        answered, at = read_short(reply.arguments, 0)
        messages, consumers = struct.unpack_from(">LL", reply.arguments, at)
        return answered, messages, consumers

    def delete_queue(self, name: str, *, channel: int = 1) -> None:
        self.call(channel, QUEUE_DELETE, b"\0\0" + short(name) + b"\0")

    def select_confirms(self, channel: int = 1) -> None:
        self.call(channel, CONFIRM_SELECT, b"\0")

    def limit_prefetch(self, count: int, channel: int = 1) -> None:
        self.call(channel, BASIC_QOS, struct.pack(">LHB", 0, count, 0))

    def consume(self, queue: str, *, tag: str = "tag", no_ack: bool = False, channel: int = 1) -> None:
        self.call(
            channel, BASIC_CONSUME, b"\0\0" + short(queue) + short(tag) + bytes([no_ack << 1]) + long(b"")
        )

    def publish(
        self,
        exchange: str,
        key: str,
        body: bytes,
        *,
        mandatory: bool = False,
        persistent: bool = False,
        channel: int = 1,
    ) -> None:
        self.send(
            publish_frames(
                channel,
                exchange,
                key,
                body,
                mandatory=mandatory,
                persistent=persistent,
                frame_max=self.frame_max,
            )
        )

    def ack(self, delivery_tag: int, *, multiple: bool = False, channel: int = 1) -> None:
        self.send(method(channel, BASIC_ACK, struct.pack(">QB", delivery_tag, multiple)))

    def close(self) -> None:
        """connection.close with its -ok; what else arrives meanwhile is dropped."""
        self.send(method(0, CONNECTION_CLOSE, struct.pack(">H", 200) + short("bye") + b"\0\0\0\0"))
        while True:
            found = self.read()
            if found.kind == METHOD and found.method == CONNECTION_CLOSE_OK:
                break
        self.abort()

    def __enter__(self) -> RawClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            self.abort()


def confirm(found: Frame) -> tuple[int, bool]:
    """Delivery tag and `multiple` of a basic.ack (or nack) frame."""
    tag, flags = struct.unpack_from(">QB", found.arguments)
    return tag, bool(flags & 1)


def delivery(found: Frame) -> tuple[int, bool]:
    """Delivery tag and `redelivered` of a basic.deliver frame."""
    _, at = read_short(found.arguments, 0)
    tag, redelivered = struct.unpack_from(">QB", found.arguments, at)
    return tag, bool(redelivered & 1)
