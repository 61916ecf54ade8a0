"""Delivery scanner: it extracts messages and confirms from any chunking of the stream and returns all other frames."""

from __future__ import annotations

import pytest

from tests.support.frames import BASIC_DELIVER, BODY, HEADER, METHOD, frame, method, short
from warren.wire.delivery_scanner import (
    HEADER_EXCESS,
    DeliveryScanner,
    StreamError,
    decode_content_header,
    decode_deliver,
    is_utf8,
)

TAG = b"\0" * 7 + b"\x05"
DELIVER = method(1, BASIC_DELIVER, short("t") + TAG + b"\1" + short("x") + short("k"))
HEAD = b"\0\x3c\0\0" + b"\0" * 7 + b"\x06" + b"\x10\0" + b"\2"
MESSAGE = DELIVER + frame(HEADER, 1, HEAD) + frame(BODY, 1, b"abc") + frame(BODY, 1, b"def")
EMPTY = DELIVER + frame(HEADER, 1, b"\0\x3c\0\0" + b"\0" * 8 + b"\0\0")
ACK = method(1, (60, 80), TAG + b"\1")
NACK = method(1, (60, 120), TAG + b"\0")
OTHERS = frame(8, 0, b"") + method(1, (20, 11), b"\0\0\0\0") + method(2, BASIC_DELIVER, b"whatever it is")
BLOCKED = method(0, (10, 60), short("low on disk"))
UNBLOCKED = method(0, (10, 61))


class RecordingListener:
    """Listener of a channel and of a connection that records its calls."""

    def __init__(self) -> None:
        self.messages: list[tuple[bytes, bytes, bytes]] = []
        self.confirms: list[tuple[int, bool, bool]] = []
        self.reasons: list[str | None] = []

    def message(self, method: bytes, header: bytes, body: bytes) -> None:
        self.messages.append((method, header, body))

    def confirm(self, sequence: int, multiple: bool, ack: bool) -> None:
        self.confirms.append((sequence, multiple, ack))

    def blocked(self, reason: str | None) -> None:
        self.reasons.append(reason)


def scanner() -> tuple[DeliveryScanner, RecordingListener]:
    listener = RecordingListener()
    made = DeliveryScanner(listener)
    made.open(1, listener)
    return made, listener


@pytest.mark.parametrize("step", [1, 7, 8, 31, 10_000])
def test_any_chunking_of_the_stream_gives_the_same_messages(step: int) -> None:
    stream = OTHERS + MESSAGE + ACK + EMPTY + BLOCKED + NACK + UNBLOCKED + OTHERS
    made, listener = scanner()
    others = b"".join(made.feed(stream[at : at + step]) for at in range(0, len(stream), step))
    assert others == OTHERS + BLOCKED + UNBLOCKED + OTHERS
    assert [body for _, _, body in listener.messages] == [b"abcdef", b""]
    assert listener.confirms == [(5, True, True), (5, False, False)]
    assert listener.reasons == ["low on disk", None]
    method, header, _ = listener.messages[0]
    assert decode_deliver(method) == (5, True, "x", "k")
    assert decode_content_header(header) == ({"delivery_mode": 2}, b"")


def test_a_protocol_header_comes_with_the_frames_before_it() -> None:
    made, _ = scanner()
    version = b"AMQP\0\0\x09\x01"
    assert made.feed(OTHERS + version) == OTHERS + version


def test_a_closed_channel_receives_nothing_more() -> None:
    made, listener = scanner()
    made.feed(DELIVER)
    made.close(1, RecordingListener())
    made.close(1, listener)
    rest = frame(HEADER, 1, HEAD)
    assert made.feed(rest) == rest
    made.open(1, listener)
    made.feed(EMPTY)
    assert len(listener.messages) == 1


@pytest.mark.parametrize(
    "stream",
    [
        frame(HEADER, 1, HEAD),
        DELIVER + frame(BODY, 1, b"abc"),
        DELIVER + frame(HEADER, 1, HEAD) + frame(BODY, 1, b"more than six"),
        DELIVER + frame(HEADER, 1, b"\0\x3c\0\0" + b"\xff" * 8 + b"\0\0"),
        frame(METHOD, 1, b"\0" * 5000),
        frame(METHOD, 1, b"\0\0\0\0", end=0),
    ],
)
def test_invalid_frames_are_an_error(stream: bytes) -> None:
    with pytest.raises(StreamError):
        scanner()[0].feed(stream)


def test_a_protocol_header_is_returned_unchanged() -> None:
    assert scanner()[0].feed(b"AMQP\0\0\x09\1") == b"AMQP\0\0\x09\1"


@pytest.mark.parametrize("payload", [b"", b"\0\x3c\0\x3c", b"\0\x3c\0\x3c\x09t"])
def test_a_method_or_header_that_ends_early_is_an_error(payload: bytes) -> None:
    with pytest.raises(StreamError):
        decode_deliver(payload)
    with pytest.raises(StreamError):
        decode_content_header(payload + b"\0" * 8 + b"\x80\0")


def test_bytes_that_are_not_utf8_round_trip() -> None:
    properties, _ = decode_content_header(HEAD[:12] + b"\0\x80" + b"\3a\xff\xe9")
    text = str(properties["message_id"])
    assert not is_utf8(text)
    assert text.encode("utf-8", "surrogateescape") == b"a\xff\xe9"
    assert is_utf8("é")


def test_a_content_header_may_exceed_the_frame_size_that_nothing_else_exceeds() -> None:
    """A content header cannot be split, and a broker that dead-letters a message adds to it."""
    listener = RecordingListener()
    scanner = DeliveryScanner(listener)
    scanner.open(1, listener)
    large = HEAD[:4] + b"\0" * 8 + b"\0\0" + b"h" * scanner.limit
    assert scanner.feed(DELIVER + frame(HEADER, 1, large)) == b""
    assert [header for _, header, _ in listener.messages] == [large]
    with pytest.raises(StreamError, match="a frame has 1052668 bytes, more than the negotiated 4096"):
        scanner.feed(DELIVER + frame(HEADER, 1, large[:14] + b"h" * (scanner.limit + HEADER_EXCESS - 18)))
    for other in (frame(BODY, 1, b"b" * scanner.limit), frame(METHOD, 1, b"m" * scanner.limit)):
        with pytest.raises(StreamError, match="more than the negotiated"):
            DeliveryScanner(listener).feed(other)
