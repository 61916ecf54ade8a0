"""AMQP frames encoded by hand from the specification, without Warren code or a library: they test `warren.wire` too."""

from __future__ import annotations

import struct
from typing import NamedTuple

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
    """A frame as it is on the wire."""

    kind: int
    channel: int
    payload: bytes

    @property
    def method(self) -> tuple[int, int]:
        """Class id and method id of a method frame."""
        assert self.kind == METHOD, self
        class_id, method_id = struct.unpack_from(">HH", self.payload)
        return class_id, method_id

    @property
    def arguments(self) -> bytes:
        return self.payload[4:]


class Content(NamedTuple):
    """A message as it is on the wire: the frame of its method (deliver, get-ok, return), its header payload and its body."""

    frame: Frame
    header: bytes
    body: bytes


def frame(kind: int, channel: int, payload: bytes, end: int = END) -> bytes:
    """Return a frame, which `end` may break."""
    return struct.pack(">BHL", kind, channel, len(payload)) + payload + bytes([end])


def body_frames(channel: int, body: bytes, frame_max: int) -> bytes:
    """Return a body as frames of at most `frame_max` bytes."""
    room = frame_max - 8
    return b"".join(frame(BODY, channel, body[at : at + room]) for at in range(0, len(body), room))


def method(channel: int, name: tuple[int, int], arguments: bytes = b"") -> bytes:
    """Return a method frame."""
    return frame(METHOD, channel, struct.pack(">HH", *name) + arguments)


def short(text: str) -> bytes:
    """Return a short string."""
    data = text.encode()
    return bytes([len(data)]) + data


def long(data: bytes) -> bytes:
    """Return a long string, or a table whose fields are encoded already."""
    return struct.pack(">L", len(data)) + data


def read_short(data: bytes, position: int) -> tuple[str, int]:
    """Return the short string at `position`, and the position after it."""
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
    """Return basic.publish, its header and its body as frames of at most `frame_max` bytes."""
    flags, properties = (0x1000, b"\x02") if persistent else (0, b"")
    head = struct.pack(">HHQH", 60, 0, len(body), flags) + properties
    arguments = b"\0\0" + short(exchange) + short(key) + bytes([mandatory])
    opening = method(channel, BASIC_PUBLISH, arguments) + frame(HEADER, channel, head)
    return opening + body_frames(channel, body, frame_max)


def confirm(found: Frame) -> tuple[int, bool]:
    """Return delivery tag and `multiple` of a basic.ack or basic.nack frame."""
    tag, flags = struct.unpack_from(">QB", found.arguments)
    return tag, bool(flags & 1)


def delivery(found: Frame) -> tuple[int, bool]:
    """Return delivery tag and `redelivered` of a basic.deliver frame."""
    _, at = read_short(found.arguments, 0)
    tag, redelivered = struct.unpack_from(">QB", found.arguments, at)
    return tag, bool(redelivered & 1)
