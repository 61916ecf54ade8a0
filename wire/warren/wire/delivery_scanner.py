"""What a broker sends a client a message at a time, taken out of the byte stream: deliveries, gets, returns, confirms.

Everything else (answers, closes, heartbeats) is handed on as it came, for whoever speaks the synchronous methods.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple, Protocol, TypeAlias

from warren.wire.methods import ACK, BASIC, DELIVER, NACK
from warren.wire.properties import present_properties

RETURN: Final = 50
GET_OK: Final = 71
GET_EMPTY: Final = 72
MESSAGES: Final = frozenset(BASIC << 16 | method for method in (DELIVER, RETURN, GET_OK))
"""The methods that content follows, of those that a broker sends."""
CONFIRMS: Final = frozenset(BASIC << 16 | method for method in (ACK, NACK))
BLOCKED: Final = 10 << 16 | 60
UNBLOCKED: Final = 10 << 16 | 61

METHOD: Final = 1
HEADER: Final = 2
BODY: Final = 3
END: Final = 0xCE
OVERHEAD: Final = 8
"""Bytes of a frame that are not its payload."""
SMALLEST_LIMIT: Final = 4096
LARGEST_BODY: Final = 512 * 1024 * 1024
"""No message is larger (RabbitMQ's own upper bound); who announces one does not speak AMQP."""

_frame = struct.Struct(">BHI").unpack_from
_u16 = struct.Struct(">H").unpack_from
_u32 = struct.Struct(">I").unpack_from
_u64 = struct.Struct(">Q").unpack_from

PropertyValue: TypeAlias = "str | int"


class StreamError(ValueError):
    """The bytes are no frames, or not in an order that has a meaning."""


class ChannelListener(Protocol):
    """A channel, as far as messages and confirms come to it."""

    def message(self, method: bytes, header: bytes, body: bytes) -> None:
        """A whole message: the payloads of its method frame and of its header frame, and its body.

        `basic.get-empty` comes as a message without header and body.
        """
        ...

    def confirm(self, sequence: int, multiple: bool, ack: bool) -> None: ...


class ConnectionListener(Protocol):
    """A connection, which the broker may stop reading (`connection.blocked`)."""

    def blocked(self, reason: str | None) -> None:
        """The reason that the broker gives, or None when it reads again."""
        ...


class IncompleteMessage:
    """A message of which something is still missing."""

    __slots__ = ("body", "header", "method", "size")

    def __init__(self, method: bytes) -> None:
        self.method = method
        self.header: bytes | None = None
        self.size = 0
        self.body = bytearray()


class DeliveryScanner:
    """Frames of one connection, as they are received.

    :ivar limit: the largest frame that the peer may send, in bytes; the negotiated one, once it is known.
    """

    def __init__(self, connection: ConnectionListener) -> None:
        self.limit = SMALLEST_LIMIT
        self.listeners: dict[int, ChannelListener] = {}
        self._connection = connection
        self._partial: dict[int, IncompleteMessage] = {}
        self._pieces: list[bytes] = []
        self._have = 0
        self._need = 0

    @property
    def rest(self) -> bytes:
        """The beginning of a frame whose end has not come."""
        return b"".join(self._pieces)

    def open(self, channel: int, listener: ChannelListener) -> None:
        """From here on, the channel's messages and confirms go to `listener`."""
        self.listeners[channel] = listener
        self._partial.pop(channel, None)

    def close(self, channel: int, listener: ChannelListener) -> None:
        if self.listeners.get(channel) is listener:
            del self.listeners[channel]
            self._partial.pop(channel, None)

    def feed(self, data: bytes) -> bytes:
        """Take in what was received, and pass on what is whole; returns the bytes that are for others.

        :raises StreamError: if they are no frames; what came before the fault has been passed on.
        """
        if self._pieces:
            self._pieces.append(data)
            self._have += len(data)
            if self._have < self._need:
                return b""
            data = b"".join(self._pieces)
            self._pieces = []
        position, size = 0, len(data)
        others: list[bytes] = []
        while size - position >= OVERHEAD:
            kind, channel, length = _frame(data, position)
            end = position + OVERHEAD + length
            if length > self.limit - OVERHEAD:
                if kind == 0x41:  # "AMQP": the broker speaks another version, and says so
                    return data[position:]
                raise StreamError(f"a frame of {length} bytes, where {self.limit} are allowed")
            if end > size:
                break
            if data[end - 1] != END:
                raise StreamError("a frame does not end where it says")
            listener = self.listeners.get(channel)
            if listener is None:
                if kind == METHOD and not channel and length >= 4:
                    self._connection_method(data[position + 7 : end - 1])
                others.append(data[position:end])
            elif kind == METHOD:
                method = _u32(data, position + 7)[0] if length >= 4 else 0
                if method in MESSAGES:
                    self._partial[channel] = IncompleteMessage(data[position + 7 : end - 1])
                elif method in CONFIRMS and length >= 13:
                    bits = data[position + 19]
                    listener.confirm(_u64(data, position + 11)[0], bits & 1 == 1, method & 0xFFFF == ACK)
                elif method == BASIC << 16 | GET_EMPTY:
                    listener.message(data[position + 7 : end - 1], b"", b"")
                else:
                    others.append(data[position:end])
            else:
                self._content(channel, listener, kind, data[position + 7 : end - 1])
            position = end
        if position < size:
            rest = data[position:]
            self._pieces = [rest]
            self._have = len(rest)
            self._need = OVERHEAD if len(rest) < OVERHEAD else OVERHEAD + _frame(rest, 0)[2]
        return b"".join(others)

    def _content(self, channel: int, listener: ChannelListener, kind: int, payload: bytes) -> None:
        partial = self._partial.get(channel)
        if partial is None:
            raise StreamError("content that belongs to no method")
        if kind == HEADER and partial.header is None and len(payload) >= 14:
            partial.header = payload
            partial.size = _u64(payload, 4)[0]
            if partial.size > LARGEST_BODY:
                raise StreamError(f"a message of {partial.size} bytes")
        elif kind == BODY and partial.header is not None:
            if len(payload) == partial.size:
                # The usual case: the body is one frame, and is not copied again.
                del self._partial[channel]
                listener.message(partial.method, partial.header, payload)
                return
            partial.body += payload
        else:
            raise StreamError(f"a frame of type {kind} in the middle of a message")
        if len(partial.body) == partial.size:
            del self._partial[channel]
            listener.message(partial.method, partial.header, bytes(partial.body))
        elif len(partial.body) > partial.size:
            raise StreamError("a body that is longer than its header says")

    def _connection_method(self, payload: bytes) -> None:
        method = _u32(payload, 0)[0]
        if method == BLOCKED:
            self._connection.blocked(payload[5:].decode("utf-8", "replace") or "no reason given")
        elif method == UNBLOCKED:
            self._connection.blocked(None)


class DeliverFields(NamedTuple):
    """A delivery, apart from its content."""

    delivery_tag: int
    redelivered: bool
    exchange: str
    routing_key: str


class ReturnFields(NamedTuple):
    """Why a message came back, and where it was published to."""

    reply_code: int
    reply_text: str
    exchange: str
    routing_key: str


class ContentHeader(NamedTuple):
    """The properties of a message by their AMQP names (those that are set), and its header table as it came."""

    properties: dict[str, PropertyValue]
    table: bytes


def decode_deliver(method: bytes) -> DeliverFields:
    """The fields of `basic.deliver` from the frame's payload.

    Bytes that are no UTF-8 become lone surrogates, which encode back to them; see `is_utf8`.

    :raises StreamError: if the payload is shorter than its fields.
    """
    try:
        position = 5 + method[4]
        (tag,) = _u64(method, position)
        redelivered = method[position + 8] & 1 == 1
        exchange, position = _short(method, position + 9)
        routing_key, _ = _short(method, position)
    except (IndexError, struct.error):
        raise StreamError("a delivery ends early") from None
    return DeliverFields(tag, redelivered, exchange, routing_key)


def decode_return(method: bytes) -> ReturnFields:
    """The fields of `basic.return` from the frame's payload.

    :raises StreamError: if the payload is shorter than its fields.
    """
    try:
        (code,) = _u16(method, 4)
        text, position = _short(method, 6)
        exchange, position = _short(method, position)
        routing_key, _ = _short(method, position)
    except (IndexError, struct.error):
        raise StreamError("a return ends early") from None
    return ReturnFields(code, text, exchange, routing_key)


def decode_content_header(header: bytes) -> ContentHeader:
    """The properties in a header frame's payload; strings as in `decode_deliver`, `timestamp` in seconds.

    :raises StreamError: if they end early.
    """
    properties: dict[str, PropertyValue] = {}
    table = b""
    position = 14
    try:
        (flags,) = _u16(header, 12)
        for name, kind in present_properties(flags):
            if kind == "short":
                properties[name], position = _short(header, position)
            elif kind == "octet":
                properties[name] = header[position]
                position += 1
            elif kind == "u64":
                (properties[name],) = _u64(header, position)
                position += 8
            else:
                start = position + 4
                position = start + _u32(header, position)[0]
                table = header[start:position]
    except (IndexError, struct.error):
        raise StreamError("the properties end early") from None
    if position != len(header):
        raise StreamError("the properties do not fill their frame")
    return ContentHeader(properties, table)


def is_utf8(text: str) -> bool:
    """Whether a string came as valid UTF-8."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _short(data: bytes, position: int) -> tuple[str, int]:
    end = position + 1 + data[position]
    if end > len(data):
        raise IndexError
    return data[position + 1 : end].decode("utf-8", "surrogateescape"), end
