"""Scanner of a client's incoming bytes: it extracts deliveries, replies to basic.get, returns and publisher confirms.

All other frames (replies to synchronous methods, closes, heartbeats) are returned unchanged, for another parser.
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
"""Methods that a broker sends with content, as `class id << 16 | method id`."""
CONFIRMS: Final = frozenset(BASIC << 16 | method for method in (ACK, NACK))
BLOCKED: Final = 10 << 16 | 60
UNBLOCKED: Final = 10 << 16 | 61

METHOD: Final = 1
HEADER: Final = 2
BODY: Final = 3
END: Final = 0xCE
OVERHEAD: Final = 8
"""Bytes of a frame without its payload: type, channel, size and end octet."""
SMALLEST_LIMIT: Final = 4096
"""Largest frame, in bytes, that is allowed before frame-max is negotiated (frame-min-size, AMQP 0-9-1 section 1.2)."""
HEADER_EXCESS: Final = 1024 * 1024
"""Bytes by which a content header may exceed the negotiated frame size.

A content header cannot be split. A broker that dead-letters a message adds to its headers, and RabbitMQ sends them however
large they have become (rabbit_binary_generator).
"""
LARGEST_BODY: Final = 512 * 1024 * 1024
"""Largest size of a message in bytes that RabbitMQ allows. A header that announces more is an error of the peer."""

_frame = struct.Struct(">BHI").unpack_from
_u16 = struct.Struct(">H").unpack_from
_u32 = struct.Struct(">I").unpack_from
_u64 = struct.Struct(">Q").unpack_from

PropertyValue: TypeAlias = "str | int"


class StreamError(ValueError):
    """Error in the bytes received on a connection: they are not AMQP frames, or the frames are in a wrong order.

    "Stream" means the byte stream of the connection, not a queue of type stream.
    """


class ChannelListener(Protocol):
    """Interface of the object that receives the messages and publisher confirms of one channel."""

    def message(self, method: bytes, header: bytes, body: bytes) -> None:
        """Receive a message (delivered, fetched or returned), or basic.get-empty in place of one.

        :param method: payload of the method frame: basic.deliver, basic.get-ok, basic.return or basic.get-empty
        :param header: payload of the content header frame; empty for basic.get-empty
        :param body: the whole body
        """
        ...

    def confirm(self, sequence: int, multiple: bool, ack: bool) -> None:
        """Receive a basic.ack or basic.nack (`ack` is false) of the broker.

        :param sequence: delivery tag: number of the publish on the channel
        :param multiple: True if it confirms all publishes up to `sequence`
        """
        ...


class ConnectionListener(Protocol):
    """Interface of the object that receives connection.blocked and connection.unblocked."""

    def blocked(self, reason: str | None) -> None:
        """Receive the reason of connection.blocked, or None for connection.unblocked."""
        ...


class IncompleteMessage:
    """Message whose frames have been received only in part."""

    __slots__ = ("body", "header", "method", "size")

    def __init__(self, method: bytes) -> None:
        self.method = method
        self.header: bytes | None = None
        self.size = 0
        self.body = bytearray()


class DeliveryScanner:
    """Scanner of a client connection's received bytes: passes messages and confirms to the listeners of channels.

    :ivar limit: largest frame in bytes that the peer may send; to be set to `frame_max` after its negotiation.
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
        """Received bytes of a frame that is not complete yet; empty if there is none."""
        return b"".join(self._pieces)

    def open(self, channel: int, listener: ChannelListener) -> None:
        """Pass the channel's messages and confirms to `listener` from now on."""
        self.listeners[channel] = listener
        self._partial.pop(channel, None)

    def close(self, channel: int, listener: ChannelListener) -> None:
        """Stop passing the channel's messages to `listener`; no effect if another listener has replaced it."""
        if self.listeners.get(channel) is listener:
            del self.listeners[channel]
            self._partial.pop(channel, None)

    def feed(self, data: bytes) -> bytes:
        """Scan received bytes: pass complete messages and confirms to the listeners, and return all other frames.

        An incomplete frame at the end is kept for the next call.

        :raises StreamError: if the bytes are not valid frames; the listeners have everything before the error
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
                if kind == 0x41:  # "AMQP": the broker answers with its protocol version
                    return b"".join(others) + data[position:]
                if kind != HEADER or length > self.limit - OVERHEAD + HEADER_EXCESS:
                    raise StreamError(f"a frame has {length} bytes, more than the negotiated {self.limit}")
            if end > size:
                break
            if data[end - 1] != END:
                raise StreamError("a frame has no end octet after the length that it announces")
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
            raise StreamError("a content frame without a method frame before it")
        if kind == HEADER and partial.header is None and len(payload) >= 14:
            partial.header = payload
            partial.size = _u64(payload, 4)[0]
            if partial.size > LARGEST_BODY:
                raise StreamError(
                    f"a content header announces {partial.size} bytes; the largest message has {LARGEST_BODY}"
                )
        elif kind == BODY and partial.header is not None:
            if len(payload) == partial.size:
                # Usually the body is one frame; it is not copied again.
                del self._partial[channel]
                listener.message(partial.method, partial.header, payload)
                return
            partial.body += payload
        else:
            raise StreamError(f"a frame of type {kind} between the content frames of a message")
        if len(partial.body) == partial.size:
            del self._partial[channel]
            listener.message(partial.method, partial.header, bytes(partial.body))
        elif len(partial.body) > partial.size:
            raise StreamError("a body is longer than its content header announces")

    def _connection_method(self, payload: bytes) -> None:
        method = _u32(payload, 0)[0]
        if method == BLOCKED:
            self._connection.blocked(payload[5:].decode("utf-8", "replace") or "no reason given")
        elif method == UNBLOCKED:
            self._connection.blocked(None)


class DeliverFields(NamedTuple):
    """Fields of basic.deliver, without the consumer tag."""

    delivery_tag: int
    redelivered: bool
    exchange: str
    routing_key: str


class ReturnFields(NamedTuple):
    """Fields of basic.return: reply code and text, and exchange and routing key of the returned publish."""

    reply_code: int
    reply_text: str
    exchange: str
    routing_key: str


class ContentHeader(NamedTuple):
    """Decoded content header: the properties that are set, by name, and `headers` as an encoded field table."""

    properties: dict[str, PropertyValue]
    table: bytes


def decode_deliver(method: bytes) -> DeliverFields:
    """Decode `method`, the payload of a basic.deliver frame.

    Bytes of names that are not UTF-8 become lone surrogates ("surrogateescape"), which encode back to the same bytes.

    :raises StreamError: if the payload is shorter than its fields
    """
    try:
        position = 5 + method[4]
        (tag,) = _u64(method, position)
        redelivered = method[position + 8] & 1 == 1
        # Without `_short`, which would double the time.
        start = position + 10
        end = start + method[start - 1]
        exchange = method[start:end].decode("utf-8", "surrogateescape")
        start = end + 1
        end = start + method[end]
        routing_key = method[start:end].decode("utf-8", "surrogateescape")
    except (IndexError, struct.error):
        raise StreamError("a basic.deliver frame ends early") from None
    if end > len(method):
        raise StreamError("a basic.deliver frame ends early")
    return DeliverFields(tag, redelivered, exchange, routing_key)


def decode_return(method: bytes) -> ReturnFields:
    """Decode `method`, the payload of a basic.return frame.

    Bytes that are not UTF-8 become lone surrogates, as in `decode_deliver`.

    :raises StreamError: if the payload is shorter than its fields
    """
    try:
        (code,) = _u16(method, 4)
        text, position = _short(method, 6)
        exchange, position = _short(method, position)
        routing_key, _ = _short(method, position)
    except (IndexError, struct.error):
        raise StreamError("a basic.return frame ends early") from None
    return ReturnFields(code, text, exchange, routing_key)


def decode_content_header(header: bytes) -> ContentHeader:
    """Decode the payload of a content header frame, except for `headers`, which stays an encoded field table.

    `timestamp` is in seconds. Strings are decoded as UTF-8; other bytes become lone surrogates ("surrogateescape").

    :raises StreamError: if the properties are shorter or longer than the payload
    """
    properties: dict[str, PropertyValue] = {}
    table = b""
    position = 14
    try:
        (flags,) = _u16(header, 12)
        for name, kind in present_properties(flags):
            if kind == "short":
                # Without `_short`, as in `decode_deliver`. Whether the text ends early is seen at the end.
                start = position + 1
                position = start + header[position]
                properties[name] = header[start:position].decode("utf-8", "surrogateescape")
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
    """Return True if the string was decoded from valid UTF-8: it contains no lone surrogate."""
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
