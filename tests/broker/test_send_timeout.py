"""Clients that stop reading their socket but still send heartbeats: their connections end after the send timeout."""

from __future__ import annotations

import pytest
from pamqp.commands import Basic

from tests.broker.conftest import pass_time, stop_time
from tests.support.blocking_client import Connection
from tests.support.frames import HEARTBEAT
from tests.support.in_process_broker import PATIENCE, InProcessBroker
from tests.support.polling import wait_until
from tests.support.raw_client import RawClient
from warren.broker import BrokerConfig
from warren.broker.connection.connection import Connection as BrokerConnection
from warren.broker.connection.send_timeout import SAMPLES
from warren.broker.connection.tcp_statistics import bytes_acknowledged

SECONDS = 30.0
SIZE = 65536
COUNT = 260
"""Messages that exceed the buffers of both sockets and the high-water mark of the broker's write buffer."""
HEARTBEAT_FRAME = bytes((HEARTBEAT, 0, 0, 0, 0, 0, 0, 0xCE))


def connection_of(broker: InProcessBroker) -> BrokerConnection:
    """Return the broker's side of the connection that was opened last."""
    return broker.connections()[-1]


def is_open(broker: InProcessBroker, connection: BrokerConnection) -> bool:
    assert broker.broker is not None
    return connection in broker.broker._running.connections


def unread(broker: InProcessBroker, connection: BrokerConnection) -> int:
    return broker.call(lambda: int(connection.unread_bytes()))


def progress(broker: InProcessBroker, connection: BrokerConnection) -> tuple[int, int | None]:
    """Return what shows that the client reads: the bytes that wait for its socket, and those that its system has taken."""
    sock = connection.transport.get_extra_info("socket")
    return broker.call(lambda: (int(connection.unread_bytes()), bytes_acknowledged(sock)))


def pass_samples(broker: InProcessBroker, peer: RawClient, count: int) -> None:
    """Let the time of `count` samples go by, while the client sends heartbeats."""
    for _ in range(count):
        peer.send_bytes(HEARTBEAT_FRAME)
        pass_time(broker, SECONDS / SAMPLES)
        broker.call(lambda: None)


def pass_samples_until_dropped(
    broker: InProcessBroker, peer: RawClient, connection: BrokerConnection
) -> None:
    """Let samples go by until the connection is dropped.

    Two are enough, unless bytes that were on their way to the client's system count as progress once more.
    """
    for _ in range(20 * SAMPLES):
        pass_samples(broker, peer, 1)
        if not is_open(broker, connection):
            return
    pytest.fail("the connection is still open")


def fill(publisher: Connection, queue: str) -> None:
    channel = publisher.channel()
    channel.connection.raw.send_bytes(channel.encoded(queue, bytes(SIZE)) * COUNT)
    channel.ready(queue)


def stop_reading(broker: InProcessBroker, publisher: Connection, peer: RawClient) -> BrokerConnection:
    """Subscribe a client to the queue `jobs`, and send it more than it reads; return the broker's side of it."""
    connection = connection_of(broker)
    peer.consume("jobs")
    fill(publisher, "jobs")
    wait_until(lambda: unread(broker, connection) > 0, "the client's socket is full")
    return connection


def test_a_consumer_that_reads_nothing_is_dropped_although_it_sends_heartbeats(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with (
        InProcessBroker() as broker,
        Connection(broker.url) as publisher,
        Connection(broker.url) as waiting,
        RawClient(broker.url) as peer,
    ):
        peer.connect(heartbeat=60).open()
        publisher.channel().declare("jobs", x_single_active_consumer=True)
        private = peer.declare("private", exclusive=True)
        stop_time(broker)
        connection = stop_reading(broker, publisher, peer)
        next_consumer = waiting.channel()
        next_consumer.consume("jobs", no_ack=True)
        pass_samples(broker, peer, SAMPLES - 1)
        assert is_open(broker, connection)
        pass_samples_until_dropped(broker, peer, connection)
        # Its role, its messages and its queue are free.
        assert len(next_consumer.deliveries(COUNT)) == COUNT
        with Connection(broker.url) as other:
            assert other.channel().declare(private) == private
        assert broker.call(lambda: connection.node.churn.send_timeouts) == 1
    (line,) = [each.getMessage() for each in caplog.records if "send_timed_out" in each.getMessage()]
    assert line.startswith("event=connection.send_timed_out peer=127.0.0.1 timeout_s=30 unread_bytes=")


def test_a_consumer_that_reads_slowly_keeps_its_connection() -> None:
    with (
        InProcessBroker() as broker,
        Connection(broker.url) as publisher,
        RawClient(broker.url) as peer,
    ):
        peer.connect(heartbeat=60).open()
        publisher.channel().declare("jobs")
        stop_time(broker)
        connection = stop_reading(broker, publisher, peer)
        for _ in range(4):
            pass_samples(broker, peer, SAMPLES - 1)
            assert is_open(broker, connection)
            before = progress(broker, connection)
            # Little, but enough that its system offers room to the broker's again, which then sends more.
            peer.read_bytes(2 * 1024 * 1024)
            wait_until(
                lambda before=before: progress(broker, connection) != before,  # type: ignore[misc]
                "the broker's system has sent more",
            )


def test_a_client_that_reads_again_starts_a_new_timeout_when_it_stops_again() -> None:
    with (
        InProcessBroker() as broker,
        Connection(broker.url) as publisher,
        RawClient(broker.url) as peer,
    ):
        peer.connect(heartbeat=60).open()
        publisher.channel().declare("jobs")
        stop_time(broker)
        connection = stop_reading(broker, publisher, peer)
        pass_samples(broker, peer, SAMPLES - 1)
        for _ in range(COUNT):
            peer.receive_message(Basic.Deliver)
        wait_until(lambda: unread(broker, connection) == 0, "all is read")
        pass_samples(broker, peer, 2 * SAMPLES)
        assert is_open(broker, connection)
        fill(publisher, "jobs")
        wait_until(lambda: unread(broker, connection) > 0, "the client's socket is full again")
        pass_samples(broker, peer, SAMPLES - 1)
        assert is_open(broker, connection)
        pass_samples_until_dropped(broker, peer, connection)


def test_without_a_timeout_a_client_may_stop_reading_for_any_time() -> None:
    config = BrokerConfig(handshake_timeout=PATIENCE, send_timeout=0)
    with (
        InProcessBroker(config=config) as broker,
        Connection(broker.url) as publisher,
        RawClient(broker.url) as peer,
    ):
        peer.connect(heartbeat=0).open()
        publisher.channel().declare("jobs")
        stop_time(broker)
        connection = stop_reading(broker, publisher, peer)
        pass_samples(broker, peer, 10 * SAMPLES)
        assert is_open(broker, connection)


@pytest.mark.parametrize("seconds", [-1.0, 86401.0, float("nan")])
def test_an_impossible_timeout_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match=r"send_timeout is .*; it must be between 0 and 86400"):
        BrokerConfig(send_timeout=seconds)
