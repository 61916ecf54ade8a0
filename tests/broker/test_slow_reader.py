"""Consumers that do not read: others go on, and the broker's memory stays bounded."""

from __future__ import annotations

import threading

import pytest
from pamqp.commands import Basic

from tests.broker.conftest import Connect
from tests.support.blocking_client import Channel, Connection
from tests.support.in_process_broker import InProcessBroker
from tests.support.polling import wait_until

SIZE = 65536
COUNT = 400
IN_BUFFERS = 200
"""Bytes that the broker and both socket buffers may hold; a quarter of it is the broker's own limit of 1 MiB."""


def publish(channel: Channel, queue: str, first: int, last: int) -> None:
    channel.connection.raw.send_bytes(
        b"".join(
            channel.encoded(queue, b"%06d" % number + bytes(SIZE - 6)) for number in range(first, last + 1)
        )
    )


def numbers(channel: Channel, count: int) -> list[int]:
    return [int(message.body[:6]) for message in channel.deliveries(count)]


@pytest.fixture
def amqp_url(inprocess: InProcessBroker) -> str:
    """URL of Warren's broker only: RabbitMQ buffers far more for a client."""
    return inprocess.url


@pytest.fixture
def queue(channel: Channel, name: str) -> str:
    return channel.declare(name, auto_delete=True)


@pytest.mark.parametrize("no_ack", [True, False])
def test_deliveries_pause_for_a_consumer_that_does_not_read(
    connect: Connect, channel: Channel, queue: str, no_ack: bool
) -> None:
    slow = connect().channel()
    slow.consume(queue, no_ack=no_ack)
    publish(channel, queue, 1, COUNT)
    left = channel.ready(queue)
    assert left >= COUNT - IN_BUFFERS
    # What it does not take, another gets.
    fast = connect().channel()
    fast.consume(queue, no_ack=True)
    assert numbers(fast, left) == list(range(COUNT - left + 1, COUNT + 1))
    # When it reads again, it goes on where it was.
    assert numbers(slow, COUNT - left) == list(range(1, COUNT - left + 1))


def test_all_messages_arrive_when_the_consumer_reads_again(
    connect: Connect, channel: Channel, queue: str
) -> None:
    slow = connect().channel()
    slow.consume(queue, "a")
    slow.consume(queue, "b", no_ack=True)
    publish(channel, queue, 1, COUNT)
    assert channel.ready(queue) >= COUNT - IN_BUFFERS
    assert numbers(slow, COUNT) == list(range(1, COUNT + 1))


def test_a_client_that_requests_without_reading_is_paused(
    connect: Connect, channel: Channel, queue: str
) -> None:
    size, count = 1024 * 1024, 64
    for number in range(count):
        channel.publish(queue, b"%06d" % number + bytes(size - 6))
    assert channel.ready(queue) == count
    slow = connect().channel()
    slow.send(*[Basic.Get(queue=queue, no_ack=True)] * count)
    wait_until(lambda: channel.ready(queue) <= count - 30, "what may wait for it is there")
    assert channel.ready(queue) >= 8
    assert numbers(slow, count) == list(range(count))
    assert channel.ready(queue) == 0
    # And the connection goes on.
    slow.publish(queue, b"x")
    assert slow.drain(queue) == [b"x"]


def test_a_publisher_that_does_not_read_its_returns_is_paused(amqp_url: str, name: str) -> None:
    # All of it has to be sent within the time that one write may take.
    with Connection(amqp_url, timeout=120) as connection:
        slow = connection.channel()
        # More than the broker keeps unread, 32 MiB, and the kernel's buffers of both directions, up to 37 MiB each here.
        size, count = 1024 * 1024, 160
        data = slow.encoded(f"{name}-nowhere", bytes(size), mandatory=True)
        sending = threading.Thread(target=slow.connection.raw.send_bytes, args=(data * count,))
        sending.start()
        sending.join(1)
        assert sending.is_alive()
        assert len(slow.deliveries(count)) == count
        sending.join()


def test_all_consumers_of_a_slow_connection_pause_and_those_of_others_do_not(
    connect: Connect, channel: Channel, queue: str, name: str
) -> None:
    slow = connect().channel()
    second = channel.declare(f"{name}-2", auto_delete=True)
    slow.consume(queue, no_ack=True)
    slow.consume(second, "own", no_ack=True)
    publish(channel, queue, 1, COUNT)
    assert channel.ready(queue) >= COUNT - IN_BUFFERS
    fast = connect().channel()
    fast.consume(second, no_ack=True)
    publish(channel, second, 1, 20)
    # The other may be given the one message with which the broker notices that it is in no better place.
    taken = numbers(fast, 19)
    assert taken == sorted(taken)
    rest = slow.deliveries(COUNT + 1)
    assert [int(message.body[:6]) for message in rest if message.consumer != "own"] == list(
        range(1, COUNT + 1)
    )
    assert len([message for message in rest if message.consumer == "own"]) == 1
