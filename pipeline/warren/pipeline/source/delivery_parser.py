"""Parsing of received frames into deliveries, which are stored in one list per column instead of one object per
message.
"""

from __future__ import annotations

import struct
from typing import NamedTuple, TypeAlias

from warren.pipeline.source.header_decoder import HeaderDecoder, Row
from warren.wire.methods import BASIC, DELIVER
from warren.wire.reply_codes import AmqpError, Reply

Routing: TypeAlias = "tuple[bool, str, str]"
"""Redelivered flag, exchange and routing key of a delivery, decoded from `basic.deliver`."""

MAX_CACHED_ROUTINGS = 1024
"""Number of decoded combinations of redelivered flag, exchange and routing key that are cached."""
MAX_MESSAGE_BYTES = 512 * 1024 * 1024
"""Largest accepted message in bytes, which is RabbitMQ's own upper bound."""
_DELIVER = struct.pack(">HH", BASIC, DELIVER)
_frame = struct.Struct(">BHI").unpack_from
_u64 = struct.Struct(">Q").unpack_from


class MessageColumns(NamedTuple):
    """Batch of messages of a queue or stream, with one list for each column."""

    offsets: list[int]
    """Offset of each message, from the header `x-stream-offset` that a stream adds; -1 for messages of a queue."""
    routings: list[Routing]
    rows: list[Row]
    """Decoded properties of each message, in the order of `header_decoder.COLUMNS`."""
    bodies: list[bytes]
    flags: int
    """Bitwise or of the AMQP property flags of all messages parsed so far. A property whose flag is not set is null
    in all of them."""

    def slice(self, first: int, last: int) -> MessageColumns:
        """Return the messages from index `first` to before `last`."""
        selected = slice(first, last)
        return MessageColumns(
            self.offsets[selected],
            self.routings[selected],
            self.rows[selected],
            self.bodies[selected],
            self.flags,
        )


class DeliveryParser:
    """Incremental parser for the deliveries of one consumer: it turns received bytes, split at any place, into
    complete messages.

    :param streamed: whether the messages come from a stream, which writes each message's offset into its header
        `x-stream-offset`
    """

    def __init__(self, frame_max: int, streamed: bool = False) -> None:
        self.count = 0
        """Number of complete messages since the consumer started."""
        self.tag = 0
        """Delivery tag of the last complete message."""
        self.size = 0
        """Bytes of the bodies that `take` has not returned yet."""
        self.other: list[bytes] = []
        """Frames that are not part of a delivery. The caller processes them and clears the list."""
        self.rest = b""
        """Beginning of a frame whose end has not been received."""
        self._frame_max = frame_max
        self._header_decoder = HeaderDecoder(streamed)
        self._routings: dict[bytes, Routing] = {}
        self._method = b""
        self._header = b""
        self._missing_bytes = 0
        self._body_parts: list[bytes] = []
        self.offsets: list[int] = []
        self.bodies: list[bytes] = []
        self._columns: tuple[list[Routing], list[Row]] = [], []

    @property
    def last_row(self) -> Row | None:
        """Decoded properties of the last complete message that `take` has not returned; None if there is none."""
        rows = self._columns[1]
        return rows[-1] if rows else None

    def take(self) -> MessageColumns:
        """Return the complete messages parsed since the last call, and remove them from the parser."""
        taken = MessageColumns(self.offsets, *self._columns, self.bodies, self._header_decoder.flags)
        self.offsets, self.bodies, self._columns, self.size = [], [], ([], []), 0
        return taken

    def forget(self) -> None:
        """Discard the complete messages, for a caller that needs only their number, and the offset and the properties of
        the last one, which are kept.
        """
        routings, rows = self._columns
        self._columns = routings[-1:], rows[-1:]
        self.offsets, self.bodies, self.size = self.offsets[-1:], [], 0

    def feed(self, data: bytes) -> None:
        """Parse received bytes, which may end in the middle of a frame.

        :raises AmqpError: if the bytes are not valid frames, or do not form messages
        :raises TableError: if the properties of a message are malformed
        """
        if self.rest:
            data = self.rest + data
        position, size = 0, len(data)
        while size - position >= 8:
            kind, _, length = _frame(data, position)
            end = position + length + 8
            if end > size:
                if length > self._frame_max:
                    raise AmqpError(Reply.FRAME_ERROR, f"a frame of {length} bytes")
                break
            if data[end - 1] != 0xCE:
                raise AmqpError(Reply.FRAME_ERROR, "a frame does not end at its declared length")
            if kind == 3:
                self._on_body(data[position + 7 : end - 1])
            elif kind == 2:
                self._on_header(data[position + 7 : end - 1])
            elif kind == 1 and data.startswith(_DELIVER, position + 7):
                self._method = data[position + 11 : end - 1]
            else:
                self.other.append(data[position:end])
            position = end
        self.rest = data[position:]

    def _on_header(self, header: bytes) -> None:
        if not self._method or len(header) < 14:
            raise AmqpError(Reply.UNEXPECTED_FRAME, "content without a delivery")
        self._header = header
        self._missing_bytes = _u64(header, 4)[0]
        if self._missing_bytes > MAX_MESSAGE_BYTES:
            raise AmqpError(Reply.FRAME_ERROR, f"a message of {self._missing_bytes} bytes")
        if not self._missing_bytes:
            self._finish_message(b"")

    def _on_body(self, body: bytes) -> None:
        missing = self._missing_bytes - len(body)
        if missing < 0 or not self._header:
            raise AmqpError(Reply.UNEXPECTED_FRAME, "a body that is longer than its header declares")
        if missing:
            self._missing_bytes = missing
            self._body_parts.append(body)
            return
        if self._body_parts:
            body = b"".join((*self._body_parts, body))
            self._body_parts = []
        self._finish_message(body)

    def _finish_message(self, body: bytes) -> None:
        method = self._method
        tag_at = 1 + method[0]
        try:
            self.tag = _u64(method, tag_at)[0]
            routing = self._routings.get(method[tag_at + 8 :]) or self._routing(method[tag_at + 8 :])
        except (IndexError, struct.error):
            raise AmqpError(Reply.SYNTAX_ERROR, "a delivery ends early") from None
        self._columns[0].append(routing)
        row, offset = self._header_decoder.row(self._header)
        self._columns[1].append(row)
        self.offsets.append(offset)
        self.bodies.append(body)
        self.size += len(body)
        self.count += 1
        self._header = self._method = b""

    def _routing(self, rest: bytes) -> Routing:
        exchange_end = 2 + rest[1]
        exchange, key = rest[2:exchange_end], rest[exchange_end + 1 :]
        routing = (rest[0] & 1 == 1, exchange.decode("utf-8", "replace"), key.decode("utf-8", "replace"))
        if len(self._routings) >= MAX_CACHED_ROUTINGS:
            self._routings.clear()
        self._routings[rest] = routing
        return routing
