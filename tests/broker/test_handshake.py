"""Handshake, from the protocol header to connection.open-ok: refusals and their texts, timeouts, heartbeats.

AMQP 0-9-1 sections 2.2.4 and 4.2.2; what RabbitMQ adds stands in https://www.rabbitmq.com/docs/connections.
"""

from __future__ import annotations

import struct
import time

import pytest
from pamqp import commands, heartbeat

from tests.broker.conftest import RawConnect, pass_time
from tests.support.broker_behaviour import AMQP_1_0_HEADER, Behaviour
from tests.support.frames import frame as raw_frame
from tests.support.frames import publish_frames
from tests.support.in_process_broker import InProcessBroker
from tests.support.polling import wait_until
from tests.support.raw_client import PROTOCOL_HEADER, RawClient, Refusal, encoded, made
from warren.broker import BrokerConfig

REFUSED = (
    "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN. "
    "For details see the broker logfile."
)


@pytest.mark.parametrize(
    "header",
    [
        b"GET / HT",
        b"AMQP\x00\x00\x09\x02",
        b"AMQP\x00\x01\x00\x00",
        AMQP_1_0_HEADER,
        b"\x16\x03\x01\x02\x00\x01\x00\x01",
    ],
    ids=["http", "0-9-2", "1.0", "1.0-sasl", "tls"],
)
def test_a_wrong_protocol_header_is_answered_with_the_right_one_and_a_close(
    raw_connect: RawConnect, server: Behaviour, header: bytes
) -> None:
    peer = raw_connect()
    peer.send_bytes(header)
    assert peer.read_bytes(8) == server.protocol_offered(header)
    if header == AMQP_1_0_HEADER and server.speaks_amqp_1_0:
        # It goes on with a SASL frame (AMQP 1.0 section 5.3.2): data offset 2, type 1.
        assert peer.read_bytes(8)[4:6] == b"\x02\x01"
        return
    assert peer.at_end()


@pytest.mark.parametrize("header", [PROTOCOL_HEADER, b"AMQP\x01\x01\x00\x09"], ids=["0-9-1", "0-9"])
def test_both_headers_of_the_protocol_start_a_connection(raw_connect: RawConnect, header: bytes) -> None:
    peer = raw_connect()
    peer.send_bytes(header)
    start = peer.expect(commands.Connection.Start)
    assert (start.version_major, start.version_minor) == (0, 9)
    assert "PLAIN" in start.mechanisms.split()
    assert start.locales == "en_US"


def test_the_server_announces_its_properties_and_capabilities(raw_connect: RawConnect) -> None:
    peer = raw_connect()
    peer.greet()
    capabilities = peer.server["capabilities"]
    assert isinstance(capabilities, dict)
    for name in (
        "publisher_confirms",
        "exchange_exchange_bindings",
        "basic.nack",
        "consumer_cancel_notify",
        "connection.blocked",
        "authentication_failure_close",
        "consumer_priorities",
        "direct_reply_to",
        "per_consumer_qos",
    ):
        assert capabilities[name] is True


def test_a_handshake_may_arrive_byte_by_byte(raw_connect: RawConnect, server: Behaviour, name: str) -> None:
    peer = raw_connect()
    for part in (
        PROTOCOL_HEADER,
        encoded(peer.start_ok(), 0),
        encoded(commands.Connection.TuneOk(100, server.smallest_frame_max, 0), 0),
        encoded(commands.Connection.Open("/"), 0),
        encoded(commands.Channel.Open(), 1),
        encoded(made(commands.Queue.Declare, queue=name, exclusive=True), 1),
    ):
        for octet in part:
            peer.send_bytes(bytes([octet]))
    for kind in (
        commands.Connection.Start,
        commands.Connection.Tune,
        commands.Connection.OpenOk,
        commands.Channel.OpenOk,
        commands.Queue.DeclareOk,
    ):
        peer.expect(kind)


def test_a_handshake_may_arrive_in_one_piece(raw_connect: RawConnect) -> None:
    peer = raw_connect()
    peer.send_bytes(
        PROTOCOL_HEADER
        + encoded(peer.start_ok(), 0)
        + encoded(commands.Connection.TuneOk(2047, 131072, 60), 0)
        + encoded(commands.Connection.Open("/"), 0)
        + encoded(commands.Channel.Open(), 1)
    )
    found = [peer.read()[1] for _ in range(4)]
    assert [type(frame) for frame in found] == [
        commands.Connection.Start,
        commands.Connection.Tune,
        commands.Connection.OpenOk,
        commands.Channel.OpenOk,
    ]


# -- login


@pytest.mark.parametrize("response", ["\0guest\0wrong", "\0nobody\0guest", "\0guest\0"])
def test_a_refused_login_is_explained_to_a_client_with_the_capability(
    raw_connect: RawConnect, response: str
) -> None:
    peer = raw_connect()
    peer.greet()
    peer.send(peer.start_ok(response=response), 0)
    found = peer.refusal()
    assert (found.scope, found.code, found.text) == ("connection", 403, REFUSED)
    assert peer.at_end()


def test_login_with_amqplain(raw_connect: RawConnect) -> None:
    """The response is a field table with LOGIN and PASSWORD, which AMQP 0-8 called PLAIN."""
    for password, answer in (("guest", commands.Connection.Tune), ("wrong", commands.Connection.Close)):
        peer = raw_connect()
        assert "AMQPLAIN" in peer.greet().mechanisms.split()
        fields = {"LOGIN": "guest", "PASSWORD": password}
        response = b"".join(
            bytes([len(name)]) + name.encode() + b"S" + struct.pack(">I", len(value)) + value.encode()
            for name, value in fields.items()
        )
        peer.send(peer.start_ok(mechanism="AMQPLAIN", response=response.decode()), 0)
        peer.expect(answer)


def test_login_with_anonymous_needs_a_configured_user() -> None:
    config = BrokerConfig(mechanisms=("ANONYMOUS", "PLAIN"), anonymous_user="guest")
    with InProcessBroker(config=config) as broker, RawClient(broker.url) as peer:
        assert peer.greet().mechanisms == "ANONYMOUS PLAIN"
        peer.send(peer.start_ok(mechanism="ANONYMOUS", response="whoever"), 0)
        peer.expect(commands.Connection.Tune)


def test_a_refused_login_without_the_capability_closes_the_socket(raw_connect: RawConnect) -> None:
    peer = raw_connect()
    peer.greet()
    peer.send(peer.start_ok(response="\0guest\0wrong", properties={}), 0)
    assert peer.at_end()


@pytest.mark.parametrize(
    "answer",
    [
        lambda peer: encoded(peer.start_ok(mechanism="NOPE"), 0),
        lambda peer: encoded(commands.Connection.Open("/"), 0),
        lambda peer: encoded(commands.Channel.Open(), 1),
        lambda peer: raw_frame(1, 0, struct.pack(">HHI", 10, 11, 3)),
        lambda peer: raw_frame(
            1, 0, struct.pack(">HHI", 10, 11, 3) + b"\x01aZ\x05PLAIN" + struct.pack(">I", 0) + b"\x05en_US"
        ),
        lambda peer: raw_frame(
            1,
            0,
            struct.pack(">HHI", 10, 11, 11)
            + b"\x01ad"
            + struct.pack(">d", float("nan"))
            + b"\x05PLAIN"
            + struct.pack(">I", 12)
            + b"\0guest\0guest\x05en_US",
        ),
        lambda peer: encoded(peer.start_ok(properties={"x": "y" * 9000}), 0),
        lambda peer: raw_frame(7, 0, b"abc"),
        lambda peer: raw_frame(1, 0, b"\0\x0a\0\x0b", end=0),
    ],
    ids=[
        "mechanism",
        "open",
        "channel",
        "truncated",
        "bad-table",
        "nan",
        "longer-than-8192",
        "unknown-frame",
        "bad-end",
    ],
)
def test_errors_before_the_login_close_the_socket_without_explanation(
    raw_connect: RawConnect, answer: object
) -> None:
    assert callable(answer)
    peer = raw_connect()
    peer.greet()
    peer.send_bytes(answer(peer))
    assert peer.at_end()


# -- tuning and opening


@pytest.mark.parametrize(
    ("tuned", "text"),
    [
        (
            {"channel_max": 4000},
            "negotiated channel_max = 4000 is higher than the maximum allowed value (2047)",
        ),
        ({"channel_max": 0}, "negotiated channel_max = 0 is higher than the maximum allowed value (2047)"),
        (
            {"frame_max": 131073},
            "negotiated frame_max = 131073 is higher than the maximum allowed value (131072)",
        ),
        ({"frame_max": 0}, "negotiated frame_max = 0 is higher than the maximum allowed value (131072)"),
        ({"frame_max": 100}, "negotiated frame_max = 100 is lower than the minimum allowed value ({})"),
    ],
)
def test_negotiated_limits_must_be_within_those_offered(
    raw_connect: RawConnect, server: Behaviour, tuned: dict[str, int], text: str
) -> None:
    peer = raw_connect()
    tune = peer.log_in()
    assert (tune.channel_max, tune.frame_max, tune.heartbeat) == (2047, 131072, 60)
    peer.tune(**tuned)
    if server.explains_tuning:
        explained = "NOT_ALLOWED - " + text.format(server.smallest_frame_max)
        assert peer.refusal() == Refusal("connection", 530, explained, (10, 31))
    assert peer.at_end()


def test_a_missing_virtual_host_is_refused(raw_connect: RawConnect) -> None:
    peer = raw_connect()
    peer.log_in()
    peer.tune()
    found = peer.refused(made(commands.Connection.Open, virtual_host="nope"), 0)
    assert found == Refusal("connection", 530, "NOT_ALLOWED - vhost nope not found", (10, 40))
    assert peer.at_end()


def test_channel_methods_before_connection_open_are_refused(raw_connect: RawConnect) -> None:
    peer = raw_connect()
    peer.log_in()
    peer.tune()
    found = peer.refused(commands.Connection.TuneOk(2047, 131072, 0), 0)
    text = "CHANNEL_ERROR - unexpected method in connection state opening"
    assert found == Refusal("connection", 504, text, (10, 31))
    assert peer.at_end()

    peer = raw_connect()
    peer.log_in()
    peer.tune()
    peer.send(commands.Channel.Open(), 1)
    found = peer.refusal()
    assert (found.code, found.text) == (505, "UNEXPECTED_FRAME - type 1, all octets = <<0,20,0,10,1,48>>")
    assert peer.at_end()


@pytest.mark.parametrize("limit", ["smallest", "offered"])
def test_a_frame_may_be_as_large_as_negotiated(
    raw_connect: RawConnect, server: Behaviour, name: str, limit: str
) -> None:
    frame_max = server.smallest_frame_max if limit == "smallest" else 131072
    peer = raw_connect().connect(frame_max=frame_max).open()
    peer.declare(name, exclusive=True)
    # RabbitMQ takes 8 bytes more, for clients that forget the frame's own.
    for size in (frame_max - 8, frame_max):
        peer.send_bytes(encoded(made(commands.Basic.Publish, routing_key=name)))
        peer.send_bytes(raw_frame(2, 1, struct.pack(">HHQH", 60, 0, size, 0)) + raw_frame(3, 1, b"x" * size))
    assert peer.purge(name) == 2
    found = peer.cut_off(raw_frame(3, 1, b"x" * (frame_max + 1)))
    reason = f"{{frame_too_large,{frame_max + 1},{frame_max - 8}}}"
    assert found == Refusal("connection", 501, f"FRAME_ERROR - type 3, all octets = <<>>: {reason}", (0, 0))


def test_deliveries_are_split_into_frames_of_the_negotiated_size(
    raw_connect: RawConnect, server: Behaviour, name: str
) -> None:
    frame_max = server.smallest_frame_max
    big = raw_connect().connect().open()
    small = raw_connect().connect(frame_max=frame_max).open()
    small.declare(name, exclusive=True)
    big.publish("", name, bytes(range(256)) * 100)
    big.sync()
    small.send(made(commands.Basic.Consume, queue=name, no_ack=True))
    small.expect(commands.Basic.ConsumeOk)
    assert small.expect(commands.Basic.Deliver).routing_key == name
    small.read()
    sizes: list[int] = []
    while sum(sizes) < 25600:
        kind, _, size = struct.unpack(">BHI", small.read_bytes(7))
        assert kind == 3
        small.read_bytes(size + 1)
        sizes.append(size)
    assert max(sizes) + 8 <= frame_max


# -- time


def test_a_handshake_times_out(caplog: pytest.LogCaptureFixture) -> None:
    with InProcessBroker(config=BrokerConfig(handshake_timeout=3600)) as broker:
        silent, greeted, logged_in = RawClient(broker.url), RawClient(broker.url), RawClient(broker.url)
        greeted.greet()
        done = RawClient(broker.url).connect().open()
        pass_time(broker, 2400)
        logged_in.log_in()
        pass_time(broker, 1201)
        for peer in (silent, greeted, logged_in):
            assert peer.at_end()
        done.sync()
        for peer in (silent, greeted, logged_in, done):
            peer.abort()
    assert [record.getMessage().split()[0] for record in caplog.records if record.levelname == "WARNING"] == [
        "event=connection.handshake_timed_out"
    ] * 3


def test_heartbeats_are_sent_and_expected(raw_connect: RawConnect) -> None:
    """With a timeout of one second, the broker sends two a second, and drops a client after two silent seconds."""
    while True:
        start = time.monotonic()
        try:
            peer, alive = raw_connect().connect(heartbeat=1), raw_connect().connect(heartbeat=1).open()
            break
        except ConnectionError:
            # Only because this machine stood still.
            assert time.monotonic() - start > 1.5
    last_heartbeat, longest = start, 0.0
    beats = 0
    try:
        while True:
            try:
                _, found = peer.read()
            except ConnectionError:
                break
            assert isinstance(found, heartbeat.Heartbeat)
            beats += 1
            longest, last_heartbeat = max(longest, time.monotonic() - last_heartbeat), time.monotonic()
            # Any traffic counts, a heartbeat as well.
            alive.send_bytes(raw_frame(8, 0, b""))
            # Heartbeats measure the time here: a machine that stalls sends none meanwhile.
            assert beats < 20
        alive.sync()
    except ConnectionError:
        # Only because this machine stood still.
        assert max(longest, time.monotonic() - last_heartbeat) > 1.5, (
            "it was disconnected though it sent a heartbeat each second"
        )
    assert beats >= 2
    assert time.monotonic() - start > 1.5


def test_the_first_heartbeat_comes_after_half_the_timeout(inprocess: InProcessBroker) -> None:
    with RawClient(inprocess.url) as peer:
        peer.connect(heartbeat=3600)
        pass_time(inprocess, 1801)
        assert isinstance(peer.read()[1], heartbeat.Heartbeat)


def test_no_heartbeats_are_sent_if_none_are_negotiated(raw_connect: RawConnect, peer: RawClient) -> None:
    beating = raw_connect().connect(heartbeat=4)
    beating.read()
    peer.sync()
    peer.send(commands.Connection.Close(200, "", 0, 0), 0)
    assert isinstance(peer.read()[1], commands.Connection.CloseOk)


# -- closing


def test_exclusive_queues_are_deleted_before_close_ok(
    raw_connect: RawConnect, peer: RawClient, server: Behaviour, name: str
) -> None:
    other = raw_connect().connect().open()
    other.declare(name, exclusive=True)
    other.send(commands.Connection.Close(200, "bye", 0, 0), 0)
    assert isinstance(other.read()[1], commands.Connection.CloseOk)
    if server.shows_deletions_late:
        passive = made(commands.Queue.Declare, queue=name, passive=True)
        wait_until(
            lambda: raw_connect().connect().open().refused(passive).code == 404, "the queue is deleted"
        )
    assert peer.declare(name, exclusive=True) == name


def test_what_follows_connection_close_in_the_same_burst_is_discarded(
    raw_connect: RawConnect, peer: RawClient, name: str
) -> None:
    """A socket that is closed with unread input is reset, and the client reads no connection.close-ok."""
    sender = raw_connect().connect().open()
    sender.declare(name)
    publish = publish_frames(1, "", name, bytes(1000))
    sender.send_bytes(publish + encoded(commands.Connection.Close(200, "bye", 0, 0), 0) + publish * 20_000)
    assert isinstance(sender.read()[1], commands.Connection.CloseOk)
    sender.send_bytes(b"no frame at all" * 1000)
    deleted = peer.call(made(commands.Queue.Delete, queue=name), 1, commands.Queue.DeleteOk)
    assert deleted.message_count == 1


def test_a_stopping_broker_closes_the_sockets_of_closed_connections(inprocess: InProcessBroker) -> None:
    with RawClient(inprocess.url) as peer:
        peer.connect()
        peer.send(commands.Connection.Close(200, "bye", 0, 0), 0)
        assert isinstance(peer.read()[1], commands.Connection.CloseOk)
        inprocess.stop()
        assert peer.at_end()


def test_a_stopping_broker_closes_connections_with_a_reason() -> None:
    with InProcessBroker() as broker:
        peers = [RawClient(broker.url).connect() for _ in range(3)]
        unfinished = RawClient(broker.url)
        unfinished.greet()
        broker.stop()
        for peer in peers:
            assert peer.refusal()[:3] == (
                "connection",
                320,
                "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'",
            )
            assert peer.at_end()
        assert unfinished.at_end()
        for peer in (*peers, unfinished):
            peer.abort()
