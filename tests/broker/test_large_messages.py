"""Large messages: the broker does not copy them as a whole, because other clients wait meanwhile."""

from __future__ import annotations

import socket
import struct

import pytest
from pamqp.commands import Basic
from pamqp.commands import Connection as ConnectionClass

from tests.support.blocking_client import Channel, Connection
from tests.support.bulk_work import bulk_of
from tests.support.in_process_broker import InProcessBroker
from tests.support.polling import wait_until
from tests.support.raw_client import RawClient, encoded, made
from warren.broker.connection.connection_phases import LINGERING
from warren.broker.connection.lifecycle import CLOSE_TIMEOUT, LINGER_SECONDS
from warren.broker.connection.listener import WRITE_BUFFER_HIGH
from warren.wire.content import join_content

MIB = 1024 * 1024
BODY = bytes(range(256)) * (5 * 4096)
"""Body of 5 MiB."""
COUNT = 5
"""Number of messages of that size which are sent at once."""


def test_a_large_message_is_sent_in_pieces(
    timed: Channel, inprocess: InProcessBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    bulk = bulk_of(inprocess)
    server = bulk.connection()
    sizes: list[int] = []
    write = server.transport.write

    def record(data: bytes) -> None:
        sizes.append(len(data))
        write(data)

    monkeypatch.setattr(server.transport, "write", record)
    queue = timed.declare()
    for _ in range(COUNT):
        timed.publish(queue, BODY)
    timed.publish(queue, b"next")
    assert timed.ready(queue) == COUNT + 1
    sizes.clear()
    timed.send(Basic.Consume(queue=queue, no_ack=True))
    # More than the buffers of sockets hold while nobody reads.
    wait_until(lambda: len(sizes) > 0, "the socket is full")
    assert isinstance(timed.next(), Basic.ConsumeOk)
    assert [message.body for message in timed.deliveries(COUNT + 1)] == [BODY] * COUNT + [b"next"]
    assert max(sizes) <= server.frame_max


def test_small_frames_of_a_large_message_are_joined(
    timed: Channel, inprocess: InProcessBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = timed.declare()
    timed.publish(queue, BODY)
    assert timed.ready(queue) == 1
    client = RawClient(inprocess.url)
    client.connect(frame_max=4096)
    client.open()
    server = bulk_of(inprocess).connection()
    sizes: list[int] = []
    write = server.transport.write

    def record(data: bytes) -> None:
        sizes.append(len(data))
        write(data)

    monkeypatch.setattr(server.transport, "write", record)
    client.send(Basic.Consume(queue=queue, no_ack=True))
    client.expect(Basic.ConsumeOk)
    assert client.receive_message(Basic.Deliver).body == BODY
    client.abort()
    # The transport of Python 3.12 sums up all its pieces at each write.
    assert 0 < len(sizes) <= len(BODY) // 65536 + 2


def test_a_large_message_is_passed_to_the_transport_in_slices(
    timed: Channel, inprocess: InProcessBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    bulk = bulk_of(inprocess)
    server = bulk.connection()
    turns = [0]

    def count() -> None:
        turns[0] += 1
        bulk.node.loop.call_soon(count)

    inprocess.call(count)
    written: list[int] = []
    write = server.transport.write

    def record(data: bytes) -> None:
        written.append(turns[0])
        write(data)

    queue = timed.declare()
    for _ in range(COUNT):
        timed.publish(queue, BODY)
    assert timed.ready(queue) == COUNT
    monkeypatch.setattr(server.transport, "write", record)
    timed.send(Basic.Consume(queue=queue, no_ack=True))
    assert isinstance(timed.next(), Basic.ConsumeOk)
    assert [message.body for message in timed.deliveries(COUNT)] == [BODY] * COUNT
    # Others are served between two frames: the beginning of one, and its body, are passed together.
    assert len(set(written)) > len(written) // 3 > 10


def test_a_connection_that_is_closed_gets_all_of_a_large_message_first(
    timed: Channel, inprocess: InProcessBroker
) -> None:
    bulk_of(inprocess)
    queue = timed.declare()
    timed.publish(queue, BODY)
    assert timed.ready(queue) == 1
    with RawClient(inprocess.url) as client:
        client.connect().open()
        client.send_bytes(
            encoded(made(Basic.Consume, queue=queue, no_ack=True))
            + encoded(made(ConnectionClass.Close, reply_code=200, reply_text="", class_id=0, method_id=0), 0)
        )
        client.expect(Basic.ConsumeOk)
        assert client.receive_message(Basic.Deliver).body == BODY
        client.expect(ConnectionClass.CloseOk)


def test_a_lost_client_is_not_logged_for_each_piece(
    timed: Channel, inprocess: InProcessBroker, caplog: pytest.LogCaptureFixture
) -> None:
    client = Connection(inprocess.url)
    server = bulk_of(inprocess).connection()
    client.raw._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def lose() -> None:
        client.abort()
        server.write_large([BODY] * 20)

    inprocess.call(lose)
    assert timed.exists(timed.declare())
    assert "socket.send() raised exception" not in caplog.text


def test_large_messages_are_delivered_in_slices(timed: Channel, inprocess: InProcessBroker) -> None:
    bulk = bulk_of(inprocess)
    queue = timed.declare()
    timed.publish(queue, BODY)
    timed.publish(queue, b"next")
    assert timed.ready(queue) == 2
    before = bulk.slices()
    timed.consume(queue, no_ack=True)
    assert [message.body for message in timed.deliveries(2)] == [BODY, b"next"]
    assert bulk.slices() > before


@pytest.mark.parametrize("size", [131_063, 131_064, 131_065, MIB - 100, MIB, 3 * MIB])
def test_a_message_of_any_size_arrives_on_any_channel(timed: Channel, size: int) -> None:
    queue = timed.declare()
    other = timed.connection.channel()
    body = (BODY * 2)[:size]
    timed.publish(queue, body)
    found = other.get(queue)
    assert found is not None
    assert found.body == body
    other.nack(found.tag)
    timed.consume(queue)
    assert timed.deliveries(1)[0].body == body


def test_a_large_message_is_stored_as_it_came(inprocess: InProcessBroker) -> None:
    bulk = bulk_of(inprocess)
    with Connection(inprocess.url) as connection:
        channel = connection.channel()
        queue = channel.declare()
        channel.publish(queue, BODY)
        assert channel.ready(queue) == 1
        message = bulk.vhost.queues[queue.encode()].ready.head()
    assert message is not None
    header = message.content[7 : 7 + int.from_bytes(message.content[3:7], "big")]
    assert message.content == join_content(channel.number, header, BODY)


def test_a_client_that_does_not_read_leaves_a_large_message_out_of_the_transport(
    timed: Channel, inprocess: InProcessBroker
) -> None:
    """The transport copies all that it holds, again and again, and other clients wait meanwhile."""
    queue = timed.declare()
    for _ in range(COUNT):
        timed.publish(queue, BODY)
    assert timed.ready(queue) == COUNT
    with RawClient(inprocess.url) as client:
        client.connect().open()
        server = bulk_of(inprocess).connection()

        def output() -> tuple[int, int]:
            return int(server.unread_bytes()), server.transport.get_write_buffer_size()

        client.send_bytes(encoded(made(Basic.Consume, queue=queue, no_ack=True)))
        wait_until(lambda: inprocess.call(lambda: server.write_buffer_full), "the write buffer is full")
        unread, buffered = inprocess.call(output)
        assert buffered <= WRITE_BUFFER_HIGH + server.frame_max
        assert unread > len(BODY) // 5
        # No more is delivered to a client that does not read what it has got.
        assert timed.ready(queue) > 0
        client.expect(Basic.ConsumeOk)
        assert [client.receive_message(Basic.Deliver).body for _ in range(COUNT)] == [BODY] * COUNT
        wait_until(lambda: inprocess.call(output) == (0, 0), "all is written")
        assert timed.ready(queue) == 0


@pytest.mark.slow  # The broker waits 30 s of real time for the client to close its socket.
def test_a_connection_that_does_not_read_a_large_message_is_closed_in_time(
    timed: Channel, inprocess: InProcessBroker
) -> None:
    queue = timed.declare()
    for _ in range(COUNT):
        timed.publish(queue, BODY)
    assert timed.ready(queue) == COUNT
    with RawClient(inprocess.url) as client:
        client.connect().open()
        bulk = bulk_of(inprocess)
        server = bulk.connection()
        client.send_bytes(encoded(made(Basic.Consume, queue=queue, no_ack=True)))
        wait_until(lambda: inprocess.call(lambda: server.write_buffer_full), "the write buffer is full")
        close = made(ConnectionClass.Close, reply_code=200, reply_text="", class_id=0, method_id=0)
        client.send_bytes(encoded(close, 0))
        wait_until(lambda: inprocess.call(lambda: server.phase == LINGERING), "connection.close has arrived")

        def dropped() -> bool:
            inprocess.advance(LINGER_SECONDS)
            return inprocess.call(
                lambda: server.large_output is not None and server.large_output.closes_socket
            )

        wait_until(dropped, "the client has closed its socket too late")
        inprocess.advance(CLOSE_TIMEOUT)
        wait_until(lambda: inprocess.call(server.transport.is_closing), "the socket is closed")
