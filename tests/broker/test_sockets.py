"""Sockets read and written without the event loop's transports."""

from __future__ import annotations

import random
from threading import Thread

import pytest
from pamqp.commands import Basic

from tests.broker.conftest import Connect
from tests.support.blocking_client import Channel, Connection
from tests.support.in_process_broker import InProcessBroker
from tests.support.polling import wait_until
from warren.broker.configuration.config import BrokerConfig

SIZE = 65536
COUNT = 200
"""Bytes that fill the sockets and the broker's buffers."""


@pytest.fixture
def amqp_url(inprocess: InProcessBroker) -> str:
    """URL of a broker that reads sockets directly, as the other tests' server may not."""
    return inprocess.url


def test_replies_keep_their_order_behind_a_full_socket(connect: Connect, channel: Channel, name: str) -> None:
    """Output written while the socket is full precedes output written when it has room again."""
    queue = channel.declare(name, auto_delete=True)
    slow = connect().channel()
    slow.consume(queue, no_ack=True)
    for number in range(COUNT):
        channel.publish(queue, b"%06d" % number + bytes(SIZE - 6))
    for number in range(COUNT):
        # The answer is written as soon as it is asked for, while the socket has just got a little room.
        slow.send(Basic.Qos(prefetch_count=0))
        (message,) = slow.deliveries(1)
        assert message.body == b"%06d" % number + bytes(SIZE - 6)
    for _ in range(COUNT):
        slow.next_method(Basic.QosOk)


def arrive_whole(url: str, frame_max: int) -> None:
    """Send bodies of sizes around every threshold of reading and writing, in pieces that ignore frame boundaries."""
    sizes = [0, 1, 4000, 16_000, 16_500, 65_000, 65_536, frame_max - 8, frame_max - 7, 300_000, 3, 1_000_000]
    sent = [random.Random(number).randbytes(size) for number, size in enumerate(sizes * 3)]
    random.Random(7).shuffle(sent)
    with Connection(url) as connection:
        assert connection.raw.frame_max == frame_max
        channel = connection.channel()
        queue = channel.declare("whole", auto_delete=True)
        channel.consume(queue, no_ack=True)
        # A header makes the test's client cut the body as was tuned.
        data = b"".join(channel.encoded(queue, body, delivery_mode=1) for body in sent)

        def publish() -> None:
            for at in range(0, len(data), 100_003):
                connection.raw.send_bytes(data[at : at + 100_003])

        publishing = Thread(target=publish)
        publishing.start()
        assert [message.body for message in channel.deliveries(len(sent))] == sent
        publishing.join()


def test_bodies_of_all_sizes_arrive_whole(amqp_url: str) -> None:
    arrive_whole(amqp_url, 131_072)


def test_bodies_arrive_whole_in_larger_frames() -> None:
    with InProcessBroker(config=BrokerConfig(frame_max=500_000)) as broker:
        arrive_whole(broker.url, 500_000)


@pytest.mark.parametrize("reset", [True, False], ids=["reset", "end of stream"])
def test_unacknowledged_messages_of_a_lost_connection_are_requeued(
    connect: Connect, channel: Channel, name: str, reset: bool
) -> None:
    queue = channel.declare(name)
    channel.publish(queue, b"back")
    gone = connect()
    consumer = gone.channel()
    consumer.consume(queue)
    assert [message.body for message in consumer.deliveries(1)] == [b"back"]
    if reset:
        gone.raw.reset()
    else:
        gone.raw.hang_up()
    wait_until(lambda: channel.ready(queue) == 1, "the message was not given back")
    again = channel.get(queue, no_ack=True)
    assert again is not None
    assert (again.body, again.redelivered) == (b"back", True)


def test_an_error_in_a_write_ends_only_its_connection(
    connect: Connect,
    channel: Channel,
    name: str,
    inprocess: InProcessBroker,
    caplog: pytest.LogCaptureFixture,
) -> None:
    queue = channel.declare(name)
    known = set(inprocess.connections())
    harmed = connect()
    consumer = harmed.channel()
    (broken,) = set(inprocess.connections()) - known

    def fail(data: bytes) -> None:
        raise RuntimeError("for a reason that nobody has foreseen")

    def harm() -> None:
        broken.descriptor = -1
        broken.transport.write = fail  # type: ignore[method-assign, assignment]

    inprocess.call(harm)
    consumer.send(Basic.Consume(queue=queue, nowait=True))
    wait_until(lambda: channel.state(queue)[1] == 1, "no consumer")
    channel.publish(queue, b"kept")
    wait_until(lambda: channel.state(queue) == (1, 0), "the message was not given back")
    assert "event=connection.crashed" in caplog.text
    harmed.abort()
