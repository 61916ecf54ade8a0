"""Large messages: the broker does not copy them as a whole, because other clients wait meanwhile."""

from __future__ import annotations

import pytest
from pamqp.commands import Basic

from tests.support.blocking_client import Channel, Connection
from tests.support.bulk_work import bulk_of
from tests.support.in_process_broker import InProcessBroker
from tests.support.polling import wait_until
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
