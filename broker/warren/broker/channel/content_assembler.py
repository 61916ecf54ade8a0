"""Assembly of a published message whose header frame and body frames arrive one by one."""

from __future__ import annotations

import struct
from io import BytesIO
from typing import TYPE_CHECKING, Final, Optional

from mypy_extensions import i64

from warren.wire.content import FRAME_END, HEADER_FIXED, content_beginning, join_content
from warren.wire.methods import BASIC, PUBLISH
from warren.wire.reply_codes import AmqpError, Reply, describe_frame

if TYPE_CHECKING:
    from warren.broker.channel.channel import Channel, PublishTarget

# The size is unsigned on the wire. Read as a signed number, an impossible one is negative, and refused as such.
_header = struct.Struct(">HHq").unpack_from

HEADER: Final = 2


class ContentAssembler:
    """Assembler of the message that is arriving on one channel (AMQP 0-9-1, section 4.2.6)."""

    size: i64 = 0
    """Size of the body in bytes, as the header frame announces it."""
    received: i64 = 0
    """Number of body bytes received so far."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.target: Optional[PublishTarget] = None  # noqa: UP045
        """Decoded basic.publish that the content belongs to; None while no content is expected."""
        self.header: Optional[bytes] = None  # noqa: UP045
        """Payload of the header frame; None until the frame has arrived."""
        self.content: Optional[BytesIO] = None  # noqa: UP045
        """Encoded content received so far, with the body as one frame; None until its header has arrived.

        Not a list of pieces, because a client may send a body byte by byte. In the end its value is taken without a copy,
        which of 128 MiB would take a tenth of a second.
        """

    def clear(self) -> None:
        """Discard incomplete content; the next frame must be a method."""
        self.target = None
        self.header = None
        self.content = None

    def take_header(self, payload: bytes, limit: i64) -> None:
        """Process a header frame, and publish the message if its body is empty.

        :param payload: payload of the frame: class id, weight, body size and properties.
        :param limit: the largest body that is accepted, in bytes.
        :raises AmqpError: 505 if no header is expected, 501 if the payload is too short, 406 if the body is too large.
        """
        if self.target is None:
            raise unexpected_content_frame()
        if self.header is not None:
            raise self.unexpected("non content body")
        if len(payload) < HEADER_FIXED:
            raise AmqpError(Reply.FRAME_ERROR, f"{describe_frame(HEADER, payload)}: unknown_frame")
        class_id: i64
        weight: i64
        size: i64
        class_id, weight, size = _header(payload, 0)
        if class_id != BASIC:
            raise AmqpError(
                Reply.UNEXPECTED_FRAME,
                f"expected content header for class 60, got one for class {class_id} instead",
                BASIC,
                PUBLISH,
            )
        if weight:
            raise self.unexpected("non content header")
        if not 0 <= size <= limit:
            self.clear()
            raise AmqpError(
                Reply.PRECONDITION_FAILED,
                f"message size {int(size) % 2**64} is larger than configured max size {limit}",
                BASIC,
                PUBLISH,
            )
        self.header = payload
        self.size = size
        self.received = 0
        if size == 0:
            self.complete(join_content(self.channel.number, payload, b""))
        else:
            self.content = BytesIO()
            self.content.write(content_beginning(self.channel.number, payload, size))

    def take_body(self, payload: bytes) -> None:
        """Process the payload of a body frame, and publish the message if its body is complete.

        :raises AmqpError: 505 if no body is expected, 501 if the frame exceeds the rest of the body.
        """
        if self.target is None:
            raise unexpected_content_frame()
        content = self.content
        if content is None:
            raise self.unexpected("non content header")
        self.received += len(payload)
        if self.received > self.size:
            raise AmqpError(
                Reply.FRAME_ERROR, "content body frame exceeds remaining content size", BASIC, PUBLISH
            )
        content.write(payload)
        if self.received == self.size:
            content.write(FRAME_END)
            self.complete(content.getvalue())

    def complete(self, content: bytes) -> None:
        """Publish the completely received message, and expect no further content.

        :param content: its encoded header and body frames.
        """
        target = self.target
        header = self.header
        assert target is not None
        assert header is not None
        self.clear()
        channel = self.channel
        properties = channel.connection.properties
        flags: i64 = (i64(header[12]) << 8) | i64(header[13])
        properties.parse(header, HEADER_FIXED, len(header), flags)
        channel.connection.last_header = b""
        channel.publish(target, content, self.size, properties)

    def held_bytes(self) -> i64:
        """Return the bytes of the body that have arrived of a message that is not complete."""
        return i64(0) if self.content is None else self.received

    def unexpected(self, got: str) -> AmqpError:
        """Return the error, with RabbitMQ's text, of a frame that does not continue the content.

        :param got: description of the frame that has arrived.
        """
        if self.header is None:
            text = f"expected content header for class 60, got {got} frame instead"
        else:
            text = "expected content body, got non content body frame instead"
        return AmqpError(Reply.UNEXPECTED_FRAME, text, BASIC, PUBLISH)


def unexpected_content_frame() -> AmqpError:
    """Return the error of a header or body frame where a method frame must come next."""
    return AmqpError(Reply.UNEXPECTED_FRAME, "expected method frame, got non method frame instead")
