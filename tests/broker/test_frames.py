"""Frames that violate the protocol: reply codes, texts, and what they close.

AMQP 0-9-1 section 4.2; the texts are RabbitMQ's.
"""

from __future__ import annotations

import socket
import struct
import time

import pytest
from pamqp import commands, frame
from pamqp.base import Frame as Method

from tests.broker.conftest import RawConnect, stop_time
from tests.support.broker_behaviour import Behaviour
from tests.support.frames import frame as raw_frame
from tests.support.in_process_broker import InProcessBroker
from tests.support.raw_client import RawClient, Refusal, content, encoded, made
from warren.wire.field_tables import MAX_LOGIN_VALUES, MAX_VALUES

NAN = struct.pack(">d", float("nan"))
INFINITY = struct.pack(">f", float("-inf"))
NOT_FINITE = "SYNTAX_ERROR - field table with a number that is not finite"
NOT_FINITE_HEADER = "SYNTAX_ERROR - a header with a number that is not finite"


def table(content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + content


CLOSE = commands.Channel.Close(200, "", 0, 0)
PUBLISH = encoded(commands.Basic.Publish())
PUBLISH_5 = encoded(commands.Basic.Publish(), 5) + content(b"", channel=5)
HEADER = raw_frame(2, 1, struct.pack(">HHQH", 60, 0, 5, 0))
METHOD_EXPECTED = "expected method frame, got non method frame instead"
HEADER_EXPECTED = "expected content header for class 60, got non content header frame instead"
BODY_EXPECTED = "expected content body, got non content body frame instead"


def method(class_id: int, method_id: int, arguments: bytes = b"", channel: int = 1) -> bytes:
    return raw_frame(1, channel, struct.pack(">HH", class_id, method_id) + arguments)


def published_with(headers: bytes) -> bytes:
    """Return the frames of an empty message with an encoded header table, given without its length."""
    return PUBLISH + raw_frame(2, 1, struct.pack(">HHQH", 60, 0, 0, 0x2000) + table(headers))


@pytest.mark.parametrize(
    ("sent", "code", "text", "failed"),
    [
        (raw_frame(1, 1, b"\0\x32"), 501, "FRAME_ERROR - type 1, all octets = <<0,50>>: unknown_frame", (0, 0)),
        (raw_frame(7, 0, b"abc"), 501, 'FRAME_ERROR - type 7, all octets = <<"abc">>: unknown_frame', (0, 0)),
        (raw_frame(7, 9, b"abc"), 501, 'FRAME_ERROR - type 7, all octets = <<"abc">>: unknown_frame', (0, 0)),
        (
            raw_frame(7, 1, bytes(range(20))),
            501,
            "FRAME_ERROR - type 7, first 16 octets = <<0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15>>: unknown_frame",
            (0, 0),
        ),
        (
            raw_frame(1, 1, b"\0\x3c\0\x0a", end=0),
            501,
            "FRAME_ERROR - type 1, all octets = <<0,60,0,10>>: {invalid_frame_end_marker,0}",
            (0, 0),
        ),
        (raw_frame(8, 1, b""), 505, "UNEXPECTED_FRAME - type 8, all octets = <<>>", (0, 0)),
        (raw_frame(8, 0, b"x"), 501, 'FRAME_ERROR - type 8, all octets = <<"x">>: unknown_frame', (0, 0)),
        (method(50, 10, b"\0\0\5ab"), 501, "FRAME_ERROR - cannot decode <<0,0,5,97,98>>", (50, 10)),
        (method(60, 10, b"\0" * 9), 501, "FRAME_ERROR - cannot decode <<0,0,0,0,0,0,0,0,0>>", (60, 10)),
        (method(60, 40, b"\0\0\0\0"), 501, "FRAME_ERROR - cannot decode <<0,0,0,0>>", (60, 40)),
        (method(60, 40, b"\0" * 6), 501, "FRAME_ERROR - cannot decode <<0,0,0,0,0,0>>", (60, 40)),
        (method(60, 40, b"\0\0\x09abc\0\0"), 501, "FRAME_ERROR - cannot decode <<0,0,9,97,98,99,0,0>>", (60, 40)),
        (method(60, 80, b"\0\0\0\0"), 501, "FRAME_ERROR - cannot decode <<0,0,0,0>>", (60, 80)),
        (method(50, 11, b"\0" * 9), 503, "COMMAND_INVALID - unimplemented method", (50, 11)),
        (encoded(commands.Channel.FlowOk(True)), 503, "COMMAND_INVALID - unimplemented method", (20, 21)),
        (encoded(commands.Connection.TuneOk(1, 4096, 0), 1), 503, "COMMAND_INVALID - unimplemented method", (10, 31)),
        (HEADER, 505, f"UNEXPECTED_FRAME - {METHOD_EXPECTED}", (0, 0)),
        (raw_frame(3, 1, b"x"), 505, f"UNEXPECTED_FRAME - {METHOD_EXPECTED}", (0, 0)),
        (raw_frame(3, 5, b"x"), 505, f"UNEXPECTED_FRAME - {METHOD_EXPECTED}", (0, 0)),
        (raw_frame(3, 0, b"x"), 505, 'UNEXPECTED_FRAME - type 3, all octets = <<"x">>', (0, 0)),
        (PUBLISH + raw_frame(3, 1, b"x"), 505, f"UNEXPECTED_FRAME - {HEADER_EXPECTED}", (60, 40)),
        (PUBLISH + PUBLISH, 505, f"UNEXPECTED_FRAME - {HEADER_EXPECTED}", (60, 40)),
        (PUBLISH + encoded(commands.Basic.Qos()), 505, f"UNEXPECTED_FRAME - {HEADER_EXPECTED}", (60, 40)),
        (PUBLISH + encoded(CLOSE), 505, f"UNEXPECTED_FRAME - {HEADER_EXPECTED}", (60, 40)),
        (PUBLISH + HEADER + PUBLISH, 505, f"UNEXPECTED_FRAME - {BODY_EXPECTED}", (60, 40)),
        (PUBLISH + HEADER + HEADER, 505, f"UNEXPECTED_FRAME - {BODY_EXPECTED}", (60, 40)),
        (PUBLISH + content(b"") + raw_frame(3, 1, b""), 505, f"UNEXPECTED_FRAME - {METHOD_EXPECTED}", (0, 0)),
        (
            PUBLISH + raw_frame(2, 1, struct.pack(">HHQH", 10, 0, 5, 0)),
            505,
            "UNEXPECTED_FRAME - expected content header for class 60, got one for class 10 instead",
            (60, 40),
        ),
        (
            PUBLISH + raw_frame(2, 1, struct.pack(">HHQH", 60, 7, 0, 0)),
            505,
            f"UNEXPECTED_FRAME - {HEADER_EXPECTED}",
            (60, 40),
        ),
        (
            PUBLISH + raw_frame(2, 1, b"\0\x3c\0\0"),
            501,
            "FRAME_ERROR - type 2, all octets = <<0,60,0,0>>: unknown_frame",
            (0, 0),
        ),
        (encoded(commands.Channel.Open()), 504, "CHANNEL_ERROR - second 'channel.open' seen", (20, 10)),
        (encoded(commands.Basic.Qos(), 5), 504, "CHANNEL_ERROR - expected 'channel.open'", (60, 10)),
        (encoded(commands.Basic.Ack(1), 5), 504, "CHANNEL_ERROR - expected 'channel.open'", (60, 80)),
        (PUBLISH_5, 504, "CHANNEL_ERROR - expected 'channel.open'", (60, 40)),
        (encoded(CLOSE, 5), 504, "CHANNEL_ERROR - expected 'channel.open'", (20, 40)),
        (
            encoded(commands.Channel.Open(), 0),
            504,
            "CHANNEL_ERROR - unexpected method in connection state running",
            (20, 10),
        ),
        (
            encoded(commands.Connection.Open("/"), 0),
            504,
            "CHANNEL_ERROR - unexpected method in connection state running",
            (10, 40),
        ),
        (
            encoded(commands.Basic.Publish(immediate=True)) + content(b"x"),
            540,
            "NOT_IMPLEMENTED - immediate=true",
            (60, 40),
        ),
        (encoded(commands.Channel.Flow(False)), 540, "NOT_IMPLEMENTED - active=false", (20, 20)),
        (encoded(commands.Basic.Qos(prefetch_size=1)), 540, "NOT_IMPLEMENTED - prefetch_size!=0 (1)", (60, 10)),
        (encoded(commands.Basic.Recover(False)), 540, "NOT_IMPLEMENTED - requeue=false", (60, 110)),
    ],
)  # fmt: skip
def test_a_protocol_violation_closes_the_connection(
    peer: RawClient, sent: bytes, code: int, text: str, failed: tuple[int, int]
) -> None:
    assert peer.cut_off(sent) == Refusal("connection", code, text, failed)


@pytest.mark.parametrize(
    ("sent", "code", "text", "failed"),
    [
        (method(50, 99), 503, "COMMAND_INVALID - unimplemented method", (50, 99)),
        (method(99, 99), 503, "COMMAND_INVALID - unimplemented method", (99, 99)),
        (
            method(50, 10, b"\0\0\1a\0" + struct.pack(">I", 3) + b"\1ab"),
            502,
            "SYNTAX_ERROR - malformed field table: it ends early",
            (50, 10),
        ),
        (
            method(50, 10, b"\0\0\1a\0" + struct.pack(">I", 3) + b"\1aZ"),
            502,
            "SYNTAX_ERROR - unknown field type 'Z'",
            (50, 10),
        ),
        (method(50, 10, b"\0\0\1a\0" + table(b"\1ad" + NAN)), 502, NOT_FINITE, (50, 10)),
        (
            method(40, 10, b"\0\0\1e\6fanout\0" + table(b"\1aF" + table(b"\1bA" + table(b"f" + INFINITY)))),
            502,
            NOT_FINITE,
            (40, 10),
        ),
        (
            PUBLISH + raw_frame(2, 1, struct.pack(">HHQH", 60, 0, 0, 0x8000) + b"\5ab"),
            502,
            "SYNTAX_ERROR - the properties do not fill their frame",
            (60, 40),
        ),
        (
            PUBLISH + raw_frame(2, 1, struct.pack(">HHQH", 60, 0, 0, 0) + b"ab"),
            502,
            "SYNTAX_ERROR - the properties do not fill their frame",
            (60, 40),
        ),
        (
            PUBLISH + raw_frame(2, 1, struct.pack(">HHQHH", 60, 0, 0, 1, 0)),
            502,
            "SYNTAX_ERROR - more than one word of property flags",
            (60, 40),
        ),
        (
            PUBLISH + raw_frame(2, 1, struct.pack(">HHQHI", 60, 0, 0, 0x2000, 3) + b"\1aZ"),
            502,
            "SYNTAX_ERROR - the header table is malformed",
            (60, 40),
        ),
        (published_with(b"\1ad" + NAN), 502, NOT_FINITE_HEADER, (60, 40)),
        (published_with(b"\1aF" + table(b"\1bA" + table(b"f" + INFINITY))), 502, NOT_FINITE_HEADER, (60, 40)),
    ],
    ids=[
        "method",
        "class",
        "table",
        "table-type",
        "nan",
        "infinity",
        "properties",
        "more-properties",
        "flags",
        "headers",
        "nan-in-headers",
        "infinity-in-headers",
    ],
)
def test_frames_that_crash_rabbitmq_are_refused_with_an_error(
    peer: RawClient, server: Behaviour, sent: bytes, code: int, text: str, failed: tuple[int, int]
) -> None:
    if server.explains_crashes:
        assert peer.cut_off(sent) == Refusal("connection", code, text, failed)
        return
    peer.send_bytes(sent)
    try:
        found = peer.refusal()
    except ConnectionError:
        return
    assert (found.scope, found.code) == ("connection", 541)


def test_a_table_of_a_method_has_a_limited_number_of_values(inprocess: InProcessBroker) -> None:
    def declare(values: int) -> bytes:
        return method(50, 10, b"\0\0\1a\0" + table(b"\5x-allA" + table(b"t\1" * (values - 1))))

    with RawClient(inprocess.url) as peer:
        peer.connect().open()
        peer.send_bytes(declare(MAX_VALUES))
        assert isinstance(peer.read_method()[1], commands.Queue.DeclareOk)
        text = f"SYNTAX_ERROR - field table with more than {MAX_VALUES} values"
        assert peer.cut_off(declare(MAX_VALUES + 1)) == Refusal("connection", 502, text, (50, 10))


def test_client_properties_have_few_values(inprocess: InProcessBroker) -> None:
    # They come before the login.
    with RawClient(inprocess.url) as peer:
        peer.connect(properties={str(number): True for number in range(MAX_LOGIN_VALUES)}).close()
    with RawClient(inprocess.url) as peer:
        peer.greet()
        peer.send(peer.start_ok(properties={str(number): True for number in range(MAX_LOGIN_VALUES + 1)}), 0)
        assert peer.at_end()


def test_a_message_that_is_too_large_is_refused(peer: RawClient, server: Behaviour) -> None:
    if not server.judges_headers_early:
        pytest.skip("this broker waits for the whole body first")
    for size in (16 * 1024 * 1024 + 1, 2**64 - 1):
        peer.send_bytes(PUBLISH + raw_frame(2, 1, struct.pack(">HHQH", 60, 0, size, 0)))
        text = f"PRECONDITION_FAILED - message size {size} is larger than configured max size 16777216"
        assert peer.refusal() == Refusal("channel", 406, text, (60, 40))
        # What was on its way is discarded with the channel.
        peer.open()


def test_a_body_longer_than_announced_is_refused(peer: RawClient, server: Behaviour) -> None:
    if not server.judges_headers_early:
        pytest.skip("this broker waits for ever")
    text = "FRAME_ERROR - content body frame exceeds remaining content size"
    assert peer.cut_off(PUBLISH + HEADER + raw_frame(3, 1, b"x" * 6)) == Refusal(
        "connection", 501, text, (60, 40)
    )


def test_a_body_may_arrive_in_any_pieces(peer: RawClient, name: str) -> None:
    peer.declare(name, exclusive=True)
    peer.send_bytes(encoded(made(commands.Basic.Publish, routing_key=name)) + HEADER)
    for piece in (b"", b"h", b"el", b"", b"lo"):
        peer.send_bytes(raw_frame(3, 1, piece))
    peer.send(made(commands.Basic.Get, queue=name, no_ack=True))
    assert peer.receive_message(commands.Basic.GetOk).body == b"hello"


def test_contents_of_several_channels_may_interleave(peer: RawClient, name: str) -> None:
    peer.open(2)
    peer.declare(name, exclusive=True)
    first, second = (
        encoded(made(commands.Basic.Publish, routing_key=name), channel)
        + content(body, commands.Basic.Properties(message_id=str(channel)), channel=channel, frame_max=16)
        for channel, body in ((1, b"a" * 40), (2, b"b" * 40))
    )
    while first or second:
        for parts in (first, second):
            if parts:
                peer.send_bytes(parts[: 8 + struct.unpack_from(">I", parts, 3)[0]])
        first = first[8 + struct.unpack_from(">I", first, 3)[0] :] if first else b""
        second = second[8 + struct.unpack_from(">I", second, 3)[0] :] if second else b""
    peer.sync(2)
    bodies = []
    for _ in range(2):
        peer.send(made(commands.Basic.Get, queue=name, no_ack=True))
        bodies.append(peer.receive_message(commands.Basic.GetOk).body)
    assert sorted(bodies) == [b"a" * 40, b"b" * 40]


# -- a closed channel


def test_a_channel_error_leaves_other_channels_alone(
    raw_connect: RawConnect, peer: RawClient, name: str
) -> None:
    other = raw_connect().connect().open()
    peer.open(2)
    assert peer.refused(made(commands.Basic.Get, queue=name)).scope == "channel"
    peer.sync(2)
    other.sync()
    peer.open(1)
    peer.sync(1)


def test_a_connection_error_leaves_other_connections_alone(
    raw_connect: RawConnect, peer: RawClient, name: str
) -> None:
    other = raw_connect().connect().open()
    queue = other.declare(name, exclusive=True)
    peer.cut_off(raw_frame(7, 1, b""))
    assert other.purge(queue) == 0


def test_a_closing_channel_discards_all_frames_but_its_close(peer: RawClient, name: str) -> None:
    peer.send(made(commands.Basic.Ack, delivery_tag=7))
    peer.send(made(commands.Queue.Declare, queue=name))
    peer.publish("", name, b"x" * 10)
    peer.publish("nope", name, b"x" * 10)
    _, found = peer.read_method()
    assert isinstance(found, commands.Channel.Close)
    assert (found.reply_code, found.reply_text) == (406, "PRECONDITION_FAILED - unknown delivery tag 7")
    peer.send(commands.Channel.CloseOk())
    peer.open()
    assert peer.refused(made(commands.Queue.Declare, queue=name, passive=True)).code == 404


def test_both_sides_may_close_a_channel_at_once(peer: RawClient) -> None:
    peer.send_bytes(encoded(commands.Basic.Ack(7)) + encoded(CLOSE) + encoded(commands.Channel.CloseOk()))
    peer.expect(commands.Channel.Close)
    peer.expect(commands.Channel.CloseOk)


def test_a_channel_number_may_be_used_again(peer: RawClient, name: str) -> None:
    for _ in range(20):
        peer.call(CLOSE, 1, commands.Channel.CloseOk)
        peer.open()
    peer.declare(name, exclusive=True)
    peer.publish("", name, b"x")
    peer.call(made(commands.Basic.Consume, queue=name), 1, commands.Basic.ConsumeOk)
    # Delivery tags start anew with each channel.
    assert dict(peer.receive_message(commands.Basic.Deliver).carrier)["delivery_tag"] == 1


def test_the_number_of_channels_is_limited(raw_connect: RawConnect) -> None:
    peer = raw_connect().connect(channel_max=2).open(1).open(2)
    found = peer.refused(commands.Channel.Open(), 3)
    text = "NOT_ALLOWED - number of channels opened (2) has reached the negotiated channel_max (2)"
    assert (found.scope, found.code, found.text) == ("connection", 530, text)
    peer = raw_connect().connect(channel_max=2).open(1).open(2)
    peer.call(CLOSE, 1, commands.Channel.CloseOk)
    peer.open(1)


def close_behind_other_frames(peer: RawClient, name: str) -> None:
    """Send close-ok behind frames that were under way when the connection was closed."""
    peer.send(commands.Basic.Qos(prefetch_size=1))
    for _ in range(50):
        peer.publish("", name, b"x" * 3000)
    assert peer.refusal().code == 540
    assert peer.at_end()


def test_a_closing_connection_finds_close_ok_behind_other_frames(peer: RawClient, name: str) -> None:
    start = time.monotonic()
    close_behind_other_frames(peer, name)
    # Less than RabbitMQ waits for an answer, which are 30 seconds.
    assert time.monotonic() - start < 28


def test_close_ok_ends_a_closing_connection(inprocess: InProcessBroker, name: str) -> None:
    """Warren waits a few seconds for close-ok; the test ends before they have passed."""
    with RawClient(inprocess.url) as peer:
        peer.connect().open()
        stop_time(inprocess)
        close_behind_other_frames(peer, name)


def test_a_second_close_is_answered(peer: RawClient, server: Behaviour) -> None:
    if not server.is_warren:
        pytest.skip("this broker answers the second only after its own was answered")
    peer.send_bytes(
        encoded(commands.Basic.Qos(prefetch_size=1)) + encoded(commands.Connection.Close(200, "", 0, 0), 0)
    )
    peer.expect(commands.Connection.Close)
    peer.expect(commands.Connection.CloseOk)
    # The broker leaves it to the client to close the socket first.
    peer._socket.shutdown(socket.SHUT_WR)
    assert peer.at_end()


def test_nowait_methods_have_no_reply(peer: RawClient, name: str) -> None:
    """Send each of them, then a method with a reply: that reply must be the first."""
    exchange, other = f"{name}-x", f"{name}-y"
    before: list[Method] = [
        made(commands.Exchange.Declare, exchange=exchange, exchange_type="fanout", nowait=True),
        made(commands.Exchange.Declare, exchange=other, exchange_type="fanout", nowait=True),
        made(commands.Queue.Declare, queue=name, nowait=True),
        made(commands.Queue.Bind, queue=name, exchange=other, nowait=True),
        made(commands.Exchange.Bind, destination=other, source=exchange, nowait=True),
        made(commands.Confirm.Select, nowait=True),
    ]
    for command in before:
        peer.send(command)
    peer.publish(exchange, "", b"through both")
    peer.expect(commands.Basic.Ack)
    peer.send(made(commands.Basic.Consume, queue=name, consumer_tag="c", no_ack=True, nowait=True))
    assert peer.receive_message(commands.Basic.Deliver).body == b"through both"
    after: list[Method] = [
        made(commands.Exchange.Unbind, destination=other, source=exchange, nowait=True),
        made(commands.Basic.Cancel, consumer_tag="c", nowait=True),
        made(commands.Queue.Purge, queue=name, nowait=True),
        made(commands.Queue.Delete, queue=name, nowait=True),
        made(commands.Exchange.Delete, exchange=exchange, nowait=True),
        made(commands.Exchange.Delete, exchange=other, nowait=True),
    ]
    for command in after:
        peer.send(command)
    peer.sync()
    # An error closes the channel all the same.
    found = peer.refused(made(commands.Queue.Purge, queue=name, nowait=True))
    assert (found.scope, found.code) == ("channel", 404)


def test_an_error_text_is_cut_to_a_short_string(peer: RawClient) -> None:
    name = "n" * 255
    found = peer.refused(made(commands.Queue.Purge, queue=name))
    assert found.text == f"NOT_FOUND - no queue '{name}'"[:252] + "..."


def test_an_argument_of_any_length_and_bytes_can_be_quoted(
    peer: RawClient, name: str, server: Behaviour
) -> None:
    """The text quotes the differing value, cut to what fits, whatever its bytes."""
    if not server.is_warren:
        pytest.skip("RabbitMQ's connection crashes on texts that are no UTF-8")
    peer.declare(name, exclusive=True)
    for value in (b"x" * 100_000, b"\xff\xfe" * 50, "\u00e9".encode() * 300):
        table = b"\x16x-dead-letter-exchangeS" + struct.pack(">I", len(value)) + value
        arguments = (
            b"\0\0" + bytes([len(name)]) + name.encode() + b"\4" + struct.pack(">I", len(table)) + table
        )
        peer.send_bytes(method(50, 10, arguments))
        payload = peer.read_bytes(7)
        answer = peer.read_bytes(struct.unpack_from(">I", payload, 3)[0] + 1)
        assert answer[:4] == struct.pack(">HH", 20, 40)
        assert 252 <= answer[6] <= 255
        assert b"inequivalent arg 'x-dead-letter-exchange'" in answer
        peer.send(commands.Channel.CloseOk())
        peer.open()


def test_frame_types_are_those_of_pamqp() -> None:
    """The hand-made frames above equal those that pamqp encodes."""
    assert HEADER + raw_frame(3, 1, b"hello") == content(b"hello")
    assert frame.marshal(commands.Basic.Publish(), 1) == PUBLISH
