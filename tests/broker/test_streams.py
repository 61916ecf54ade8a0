"""Streams: each consumer reads the stored messages from its own offset (https://www.rabbitmq.com/docs/streams)."""

from __future__ import annotations

import struct
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pamqp.commands import Basic, Queue, Tx

from tests.broker.conftest import Connect
from tests.support.blocking_client import Channel, Closed
from tests.support.broker_behaviour import Behaviour
from tests.support.frames import frame as raw_frame
from tests.support.polling import wait_until
from tests.support.queue_arguments import long
from tests.support.raw_client import RawClient
from tests.support.streams import (
    PREFETCH,
    bodies,
    consume,
    declare_stream,
    numbered,
    offset_of,
    publish,
    publish_at_once,
    seen,
)


@pytest.fixture
def stream(channel: Channel, name: str) -> str:
    return declare_stream(channel, name)


@pytest.fixture
def ten(channel: Channel, stream: str) -> str:
    """Return a stream of ten messages whose bodies are their offsets."""
    publish(channel, stream, *bodies(0, 9))
    return stream


def refused(channel: Channel, method: Any) -> tuple[int, str]:
    """Return code and text of the error that a method gets."""
    channel.send(method)
    error = channel.closed()
    channel.connection.channels.pop(channel.number)
    return error.code, error.text.partition(" - ")[2]


# -- where a consumer begins


def test_declare_counts_the_messages_of_a_stream(channel: Channel, ten: str) -> None:
    """RabbitMQ updates the count every few seconds, and never counts the consumers."""
    consume(channel, ten, "first")
    wait_until(lambda: channel.state(ten) == (10, 0), "ten messages are counted")


def test_offset_first(channel: Channel, ten: str) -> None:
    consume(channel, ten, "first")
    assert seen(channel, 10) == numbered(0, 9)


def begun(channel: Channel) -> None:
    """Wait until the broker has looked up the end of the stream. RabbitMQ does so after consume-ok."""
    channel.qos(PREFETCH)


def test_offset_next(channel: Channel, connect: Connect, ten: str) -> None:
    consume(channel, ten, "next")
    other = connect().channel()
    consume(other, ten)  # without an offset as well
    begun(channel)
    begun(other)
    publish(channel, ten, *bodies(10, 12))
    assert seen(channel, 3) == numbered(10, 12)
    assert seen(other, 3) == numbered(10, 12)


def test_offset_last_begins_with_the_last_chunk(channel: Channel, ten: str) -> None:
    consume(channel, ten, "last")
    assert seen(channel, 1) == numbered(9, 9)


@pytest.mark.parametrize("offset", [0, 4, 9])
def test_a_numeric_offset(channel: Channel, ten: str, offset: int) -> None:
    consume(channel, ten, offset)
    assert seen(channel, 10 - offset) == numbered(offset, 9)


def test_an_offset_in_the_future(channel: Channel, ten: str) -> None:
    consume(channel, ten, 12)
    publish(channel, ten, *bodies(10, 13))
    assert seen(channel, 2) == numbered(12, 13)


def test_a_timestamp_before_all_messages(channel: Channel, ten: str) -> None:
    consume(channel, ten, datetime.fromtimestamp(1_000_000_000, UTC))
    assert seen(channel, 10) == numbered(0, 9)


def test_a_timestamp_after_all_messages(channel: Channel, ten: str) -> None:
    consume(channel, ten, datetime.now(UTC) + timedelta(hours=1))
    begun(channel)
    publish(channel, ten, b"10")
    assert seen(channel, 1) == numbered(10, 10)


@pytest.mark.parametrize("field", [long(2**63 - 1), b"T" + b"\xff" * 8])
def test_the_largest_offset_and_timestamp(peer: RawClient, channel: Channel, ten: str, field: bytes) -> None:
    """The largest values that the wire can carry."""
    peer.send(Basic.Qos(prefetch_count=1))
    assert isinstance(peer.read_method()[1], Basic.QosOk)
    name = b"x-stream-offset"
    table = bytes([len(name)]) + name + field
    head = struct.pack(">HHH", 60, 20, 0) + bytes([len(ten)]) + ten.encode() + b"\x01c\x00"
    peer.send_bytes(raw_frame(1, 1, head + struct.pack(">I", len(table)) + table))
    _, answer = peer.read_method()
    assert isinstance(answer, Basic.ConsumeOk)
    wait_until(lambda: channel.ready(ten) == 10, "the broker is well")


def test_a_timestamp_between_messages(channel: Channel, ten: str) -> None:
    """Timestamps of AMQP are whole seconds: the messages on either side of one are two seconds apart."""
    border = int(time.time()) + 2
    wait_until(lambda: time.time() >= border, "the clock is there")
    publish(channel, ten, *bodies(10, 12))
    consume(channel, ten, datetime.fromtimestamp(border, UTC))
    assert seen(channel, 3) == numbered(10, 12)


def test_an_interval_before_now(channel: Channel, ten: str) -> None:
    consume(channel, ten, "1h")
    assert seen(channel, 10) == numbered(0, 9)


@pytest.mark.parametrize("offset", ["0h", "5x", "1d"])
def test_invalid_intervals_are_refused(channel: Channel, ten: str, offset: str) -> None:
    channel.qos(1)
    method = Basic.Consume(queue=ten, arguments={"x-stream-offset": offset})
    reason = f'{{invalid_stream_offset_arg,{{longstr,<<"{offset}">>}}}}'
    assert refused(channel, method) == (
        406,
        f"invalid arg 'x-stream-offset' for queue '{ten}' in vhost '/': {reason}",
    )


# -- what a consumer has to be


def test_a_stream_consumer_needs_a_prefetch_limit(channel: Channel, server: Behaviour, stream: str) -> None:
    described = f"queue '{stream}' in vhost '/'"
    described = f"stream {described}" if server.is_4_3 else f"'{described}'"
    assert refused(channel, Basic.Consume(queue=stream)) == (
        406,
        f"consumer prefetch count is not set for {described}",
    )


def test_a_stream_consumer_cannot_use_automatic_acknowledgement(
    channel: Channel, server: Behaviour, stream: str
) -> None:
    channel.qos(10)
    kind = "stream" if server.is_4_3 else "stream queues"
    assert refused(channel, Basic.Consume(queue=stream, no_ack=True)) == (
        540,
        f"automatic acknowledgement not supported by {kind} queue '{stream}' in vhost '/'",
    )


def test_a_shared_prefetch_limit_is_refused(channel: Channel, server: Behaviour, stream: str) -> None:
    channel.qos(10)
    channel.qos(10, shared=True)
    if server.ignores_global_qos:
        channel.consume(stream)
        return
    assert refused(channel, Basic.Consume(queue=stream)) == (
        540,
        f"queue '{stream}' in vhost '/' does not support global qos",
    )


@pytest.mark.parametrize("argument", ["x-priority", "x-cancel-on-ha-failover"])
def test_arguments_of_other_consumers_are_refused(
    channel: Channel, server: Behaviour, stream: str, argument: str
) -> None:
    channel.qos(10)
    if argument == "x-cancel-on-ha-failover" and server.is_4_3:
        # Mirrored queues are gone, and the argument is not looked at.
        channel.call(Basic.Consume(queue=stream, arguments={argument: 5}), Basic.ConsumeOk)
        return
    described = f"queue '{stream}' in vhost '/'"
    assert refused(channel, Basic.Consume(queue=stream, arguments={argument: 5})) == (
        406,
        f"invalid arg '{argument}' for {described} of queue type rabbit_stream_queue",
    )


def test_x_stream_offset_is_refused_for_other_queue_types(channel: Channel) -> None:
    queue = channel.declare(exclusive=True)
    method = Basic.Consume(queue=queue, arguments={"x-stream-offset": "first"})
    described = f"queue '{queue}' in vhost '/'"
    assert refused(channel, method) == (
        406,
        f"invalid arg 'x-stream-offset' for {described} of queue type rabbit_classic_queue",
    )


def test_an_exclusive_consumer_does_not_lock_a_stream(channel: Channel, ten: str) -> None:
    consume(channel, ten, "first", "a", exclusive=True)
    assert seen(channel, 10) == numbered(0, 9)
    consume(channel, ten, "first", "b", exclusive=True)
    assert seen(channel, 10) == numbered(0, 9)


# -- what a stream does not do


@pytest.mark.parametrize(
    ("method", "what"),
    [
        (lambda stream: Basic.Get(queue=stream), "basic.get"),
        (lambda stream: Queue.Purge(queue=stream), "queue.purge"),
    ],
)
def test_get_and_purge_are_refused_for_streams(channel: Channel, stream: str, method: Any, what: str) -> None:
    assert refused(channel, method(stream)) == (
        540,
        f"{what} not supported by stream queues queue '{stream}' in vhost '/'",
    )


@pytest.mark.parametrize("method", [Basic.Nack(1, False, True), Basic.Nack(1, False, False), Basic.Reject(1)])
def test_nack_and_reject_give_nothing_back_to_a_stream(
    channel: Channel, server: Behaviour, ten: str, method: Any
) -> None:
    """RabbitMQ 4.3 settles the message; earlier versions refuse both methods."""
    consume(channel, ten, "first")
    seen(channel, 10)
    if server.is_4_3:
        channel.send(method)
        publish(channel, ten, *bodies(10, 10))
        assert seen(channel, 1) == numbered(10, 10)
        return
    assert refused(channel, method) == (
        540,
        f"basic.nack and basic.reject not supported by stream queues queue '{ten}' in vhost '/'",
    )


@pytest.mark.parametrize("requeue", [True, False])
@pytest.mark.parametrize("multiple", [True, False])
def test_a_nack_makes_room_in_the_prefetch_of_a_stream_consumer(
    channel: Channel, server: Behaviour, ten: str, requeue: bool, multiple: bool
) -> None:
    if not server.is_4_3:
        pytest.skip("earlier versions refuse basic.nack")
    consume(channel, ten, "first", prefetch=2)
    assert seen(channel, 2) == numbered(0, 1)

    channel.send(Basic.Nack(2, multiple, requeue))

    assert seen(channel, 2 if multiple else 1) == numbered(2, 3 if multiple else 2)


@pytest.mark.parametrize("flag", ["if_unused", "if_empty"])
def test_a_delete_ignores_if_unused_and_if_empty(channel: Channel, ten: str, flag: str) -> None:
    consume(channel, ten, "first", "reader")
    seen(channel, 10)
    reply = channel.call(Queue.Delete(queue=ten, **{flag: True}), Queue.DeleteOk)
    assert reply.message_count == 0
    assert channel.next_method(Basic.Cancel).consumer_tag == "reader"
    assert not channel.exists(ten)


# -- deliveries


def test_x_stream_offset_is_the_last_header(channel: Channel, server: Behaviour, stream: str) -> None:
    properties = {
        "content_type": "text/plain",
        "content_encoding": "utf8",
        "headers": {"a": 1, "x-stream-offset": 77, "b": 2},
        "delivery_mode": 1,
        "priority": 4,
        "correlation_id": "c",
        "reply_to": "r",
        "expiration": "1000",
        "message_id": "m",
        "message_type": "t",
        "user_id": "guest",
        "app_id": "app",
    }
    publish(channel, stream, b"plain")
    publish(channel, stream, b"all", **properties)
    consume(channel, stream, "first")
    plain, full = channel.deliveries(2)
    field = b"\x0fx-stream-offsetl" + struct.pack(">q", 0)
    delivery_mode = b"\x01" if server.sets_delivery_mode_in_streams else b""
    assert plain.header[14:] == struct.pack(">I", len(field)) + field + delivery_mode
    assert list(full.headers.items()) == [("a", 1), ("b", 2), ("x-stream-offset", 1)]
    sent = {**properties, "headers": full.headers}
    assert {name: getattr(full.properties, name) for name in sent} == sent
    assert (full.body, full.redelivered) == (b"all", False)


def test_a_stream_message_keeps_its_exchange_and_routing_key(
    channel: Channel, stream: str, name: str
) -> None:
    exchange = channel.declare_exchange(f"{name}.x")
    channel.bind(stream, exchange)
    channel.publish("some.key", b"routed", exchange=exchange)
    publish(channel, stream, b"direct")
    consume(channel, stream, "first")
    found = [
        (message.carrier.exchange, message.carrier.routing_key, message.body)
        for message in channel.deliveries(2)
        if isinstance(message.carrier, Basic.Deliver)
    ]
    assert sorted(found) == [("", stream, b"direct"), (exchange, "some.key", b"routed")]
    channel.delete_exchange(exchange)


def test_a_fan_out_reaches_streams_and_queues(channel: Channel, stream: str, name: str) -> None:
    exchange = channel.declare_exchange(f"{name}.x")
    queue = channel.declare(exclusive=True)
    other = declare_stream(channel, f"{name}.2")
    for each in (stream, queue, other):
        channel.bind(each, exchange)
    channel.confirm()
    channel.publish("", b"0", exchange=exchange)
    assert channel.settled(1) == [True]
    consume(channel, stream, "first")
    consume(channel, other, "first")
    assert seen(channel, 2) == [(0, b"0"), (0, b"0")]
    assert channel.drain(queue) == [b"0"]
    channel.delete_exchange(exchange)


def test_a_stream_message_has_no_bcc(channel: Channel, stream: str, name: str) -> None:
    channel.publish("nowhere", b"0", headers={"BCC": [stream], "a": 1})
    consume(channel, stream, "first")
    (message,) = channel.deliveries(1)
    assert message.headers == {"a": 1, "x-stream-offset": 0}


def test_a_large_stream_message(channel: Channel, stream: str) -> None:
    body = b"x" * 1_000_000
    publish(channel, stream, body, b"small")
    consume(channel, stream, "first")
    assert seen(channel, 2) == [(0, body), (1, b"small")]


def test_an_acknowledgement_makes_room_for_deliveries(channel: Channel, ten: str) -> None:
    consume(channel, ten, "first", prefetch=2)
    one, two = channel.deliveries(2)
    channel.ack(one.tag)
    (three,) = channel.deliveries(1)
    channel.ack(three.tag, multiple=True)
    assert [offset_of(message) for message in (one, two, three)] == [0, 1, 2]
    assert seen(channel, 2) == numbered(3, 4)


def test_a_delivery_tag_can_be_acknowledged_once(channel: Channel, ten: str) -> None:
    consume(channel, ten, "first")
    tag = channel.deliveries(10)[0].tag
    channel.ack(tag)
    assert refused(channel, Basic.Ack(tag)) == (406, f"unknown delivery tag {tag}")


def test_each_consumer_reads_all_messages(channel: Channel, connect: Connect, ten: str) -> None:
    readers = [connect().channel() for _ in range(3)]
    for number, reader in enumerate(readers):
        consume(reader, ten, number)
    publish(channel, ten, *bodies(10, 19))
    for number, reader in enumerate(readers):
        assert seen(reader, 20 - number) == numbered(number, 19)


def test_acknowledged_messages_can_be_read_again(channel: Channel, connect: Connect, ten: str) -> None:
    consume(channel, ten, "first")
    channel.ack(channel.deliveries(10)[-1].tag, multiple=True)
    channel.close()
    again = connect().channel()
    consume(again, ten, "first")
    assert seen(again, 10) == numbered(0, 9)


def test_a_cancelled_stream_consumer_gets_no_more_messages(channel: Channel, ten: str) -> None:
    tag = consume(channel, ten, "first")
    last = channel.deliveries(10)[-1]
    channel.cancel(tag)
    publish(channel, ten, b"10")
    channel.ack(last.tag, multiple=True)
    consume(channel, ten, "first")
    assert seen(channel, 11) == numbered(0, 10)


def test_a_long_backlog_is_delivered_completely_and_in_order(channel: Channel, stream: str) -> None:
    count = 20_000
    publish_at_once(channel, stream, *bodies(0, count - 1))
    consume(channel, stream, "first", prefetch=500)
    found: list[tuple[int, bytes]] = []
    while len(found) < count:
        message = channel.deliveries(1)[0]
        found.append((offset_of(message), message.body))
        if len(found) % 100 == 0:
            channel.ack(message.tag, multiple=True)
    assert found == numbered(0, count - 1)


def test_consumers_follow_a_faster_publisher(channel: Channel, connect: Connect, ten: str) -> None:
    """Each consumer reads from its own offset at its own pace, in order and without a gap."""
    count = 5_000
    places = [0, 3, 10]
    readers = [connect().channel() for _ in places]
    for reader, place in zip(readers, places, strict=True):
        consume(reader, ten, place, prefetch=200)

    def take(number: int, most: int) -> None:
        """Receive the next messages of a reader and check that their offsets follow the previous ones."""
        messages = readers[number].deliveries(min(most, count - places[number]))
        for message in messages:
            assert offset_of(message) == places[number]
            places[number] += 1
        readers[number].ack(messages[-1].tag, multiple=True)

    for start in range(10, count, 499):
        publish_at_once(channel, ten, *bodies(start, min(start + 498, count - 1)))
        for number in range(len(readers)):
            take(number, 10 + 60 * number)
    for number in range(len(readers)):
        while places[number] < count:
            take(number, 100)


# -- transactions, dead letters


def test_a_transaction_publishes_to_a_stream_at_its_commit(
    channel: Channel, connect: Connect, stream: str
) -> None:
    reader = connect().channel()
    consume(reader, stream, "first")
    channel.call(Tx.Select(), Tx.SelectOk)
    for body in bodies(0, 4):
        channel.publish(stream, body)
    channel.call(Tx.Rollback(), Tx.RollbackOk)
    for body in bodies(0, 2):
        channel.publish(stream, body)
    channel.call(Tx.Commit(), Tx.CommitOk)
    assert seen(reader, 3) == numbered(0, 2)


def test_a_nack_in_a_transaction_gives_nothing_back_to_a_stream(
    channel: Channel, server: Behaviour, ten: str
) -> None:
    consume(channel, ten, "first")
    seen(channel, 10)
    channel.call(Tx.Select(), Tx.SelectOk)
    channel.nack(1)
    if server.is_4_3:
        channel.call(Tx.Commit(), Tx.CommitOk)
        return
    assert refused(channel, Tx.Commit()) == (
        540,
        f"basic.nack and basic.reject not supported by stream queues queue '{ten}' in vhost '/'",
    )


def test_a_closed_channel_does_not_requeue_stream_messages(
    channel: Channel, connect: Connect, ten: str
) -> None:
    leaving = connect().channel()
    consume(leaving, ten, "first")
    seen(leaving, 10)
    leaving.close()
    consume(channel, ten, "first")
    assert seen(channel, 10) == numbered(0, 9)


def test_a_deleted_stream_does_not_exist(channel: Channel, stream: str) -> None:
    assert channel.delete(stream) == 0
    with pytest.raises(Closed, match="404"):
        channel.state(stream)
