"""Rarely used methods and arguments: the broker replies as RabbitMQ does."""

from __future__ import annotations

import struct

import pytest
from pamqp import commands

from tests.broker.conftest import RawConnect
from tests.support.blocking_client import Channel
from tests.support.broker_behaviour import Behaviour
from tests.support.frames import METHOD, method, short
from tests.support.queue_arguments import failed
from tests.support.raw_client import RawClient, Refusal, content, encoded, made


def test_a_client_of_amqp_0_8_gets_its_ticket(peer: RawClient) -> None:
    peer.send_bytes(method(1, (30, 10), short("/data") + b"\x1f"))
    kind, channel, size = struct.unpack(">BHI", peer.read_bytes(7))
    assert (kind, channel) == (METHOD, 1)
    assert peer.read_bytes(size + 1) == struct.pack(">HHH", 30, 11, 1) + b"\xce"


@pytest.mark.parametrize(
    ("name", "arguments", "text"),
    [
        ((60, 110), b"\0", "requeue=false"),
        ((60, 100), b"\0", "requeue=false"),
        ((20, 20), b"\0", "active=false"),
        ((60, 10), b"\0\0\0\7\0\0\0", "prefetch_size!=0 (7)"),
    ],
    ids=["recover", "recover-async", "flow", "qos"],
)
def test_methods_that_rabbitmq_does_not_implement_are_refused(
    peer: RawClient, name: tuple[int, int], arguments: bytes, text: str
) -> None:
    peer.send_bytes(method(1, name, arguments))
    assert peer.refusal() == Refusal("connection", 540, f"NOT_IMPLEMENTED - {text}", name)


def test_immediate_is_refused(peer: RawClient, name: str) -> None:
    publish = made(commands.Basic.Publish, exchange="", routing_key=name, immediate=True)
    peer.send_bytes(encoded(publish) + content(b"x"))
    found = peer.refusal()
    assert found == Refusal("connection", 540, "NOT_IMPLEMENTED - immediate=true", (60, 40))


def test_recover_and_flow_keep_the_channel_open(peer: RawClient) -> None:
    peer.call(commands.Basic.Recover(True), 1, commands.Basic.RecoverOk)
    peer.send_bytes(method(1, (60, 100), b"\1"))  # recover-async has no answer
    assert peer.call(commands.Channel.Flow(True), 1, commands.Channel.FlowOk).active is True


def test_a_consumer_tag_in_use_is_refused(raw_connect: RawConnect, name: str) -> None:
    """The tag is checked before the queue."""
    for queue in (name, "missing"):
        peer = raw_connect().connect().open()
        peer.declare(name, exclusive=True)
        peer.call(made(commands.Basic.Consume, queue=name, consumer_tag="t"), 1, commands.Basic.ConsumeOk)
        found = peer.refused(made(commands.Basic.Consume, queue=queue, consumer_tag="t"))
        text = "NOT_ALLOWED - attempt to reuse consumer tag 't'"
        assert found == Refusal("connection", 530, text, (60, 20))
        peer.abort()
        # The name is free again when the broker has seen the end of the connection; the next one needs another.
        name += "-"


def test_an_exclusive_consumer_is_refused_with_a_single_active_consumer(peer: RawClient, name: str) -> None:
    peer.declare(name, exclusive=True, arguments={"x-single-active-consumer": True})
    found = peer.refused(made(commands.Basic.Consume, queue=name, exclusive=True))
    text = f"ACCESS_REFUSED - queue '{name}' in vhost '/' in exclusive use"
    assert found == Refusal("channel", 403, text, (60, 20))


def test_a_stream_offset_is_refused_for_queues(peer: RawClient, name: str) -> None:
    peer.declare(name, exclusive=True)
    found = peer.refused(made(commands.Basic.Consume, queue=name, arguments={"x-stream-offset": "first"}))
    text = f"invalid arg 'x-stream-offset' for queue '{name}' in vhost '/' of queue type rabbit_classic_queue"
    assert found == failed(406, text)._replace(method=(60, 20))


def test_cancelling_an_unknown_consumer_succeeds(peer: RawClient) -> None:
    command = made(commands.Basic.Cancel, consumer_tag="nobody")
    assert peer.call(command, 1, commands.Basic.CancelOk).consumer_tag == "nobody"


def test_a_generated_queue_name_has_the_requested_prefix(peer: RawClient, server: Behaviour) -> None:
    if not server.is_warren:
        pytest.skip("of a RabbitMQ that is yet to come")
    assert peer.declare(exclusive=True).startswith("amq.gen-")
    made_name = peer.declare(exclusive=True, arguments={"x-name-prefix": "orders\n"})
    assert made_name.startswith("orders-")
    assert len(made_name) == len("orders-") + 22
    long = made(commands.Queue.Declare, exclusive=True, arguments={"x-name-prefix": "o" * 65})
    assert peer.refused(long) == failed(406, f"Queue name prefix '{'o' * 65}' exceeds the 64-byte limit")


def test_the_size_of_a_transaction_is_limited(channel: Channel, server: Behaviour) -> None:
    if not server.is_warren:
        pytest.skip("RabbitMQ keeps what fits into its memory")
    queue = channel.declare(exclusive=True)
    channel.call(commands.Tx.Select(), commands.Tx.SelectOk)
    for _ in range(9):
        channel.publish(queue, bytes(15 * 2**20))
    error = channel.closed()
    assert error.code == 406
    assert error.text.startswith("PRECONDITION_FAILED - transaction of 9 actions and ")
    other = channel.connection.channel()
    assert other.ready(queue) == 0
