"""kill -9 while producers publish with publishing ids: each message is in the stream once, in order."""

from __future__ import annotations

import random

import pytest
from pamqp.commands import Basic

from tests.support.blocking_client import Channel, Connection
from tests.support.broker_process import BrokerProcess
from tests.support.streams import consume, declare_stream

pytestmark = pytest.mark.slow

STREAM = "s"
WINDOW = 300
ROUNDS = 5


class Producer:
    """A producer that publishes again, after each failure, what has no confirm."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.confirmed = 0
        """Number of messages that were confirmed; their ids are 0, 1, ..."""
        self.published = 0
        """Number of messages that were sent on any connection."""

    def connect(self, url: str) -> None:
        self.connection = Connection(url)
        self.channel = self.connection.channel()
        self.channel.confirm()
        self.first = self.sent = self.confirmed

    def encoded(self, number: int) -> bytes:
        headers = {"x-warren-producer": self.name, "x-warren-publishing-id": number}
        return self.channel.encoded(STREAM, f"{self.name}:{number}", headers=headers)

    def run_until(self, confirmed: int) -> None:
        while self.confirmed < confirmed:
            count = WINDOW - (self.sent - self.confirmed)
            batch = [self.encoded(number) for number in range(self.sent, self.sent + count)]
            self.connection.raw.send_bytes(b"".join(batch))
            self.sent += count
            self.published = max(self.published, self.sent)
            self.confirmed = self.first + (self.channel.next_method(Basic.Ack).delivery_tag or 0)

    def settle(self) -> None:
        """Wait for the confirms of all messages that were sent."""
        while self.confirmed < self.sent:
            self.confirmed = self.first + (self.channel.next_method(Basic.Ack).delivery_tag or 0)
        self.connection.close()


def bodies(channel: Channel, count: int) -> list[str]:
    consume(channel, STREAM, "first", prefetch=60_000)
    return [message.body.decode() for message in channel.deliveries(count)]


def test_messages_that_are_published_again_after_a_kill_are_there_once(broker: BrokerProcess) -> None:
    """Small segments, so that ids are read from the beginning of a segment as well as from messages."""
    chance = random.Random(11)
    producers = [Producer("a"), Producer("b")]
    with Connection(broker.url) as connection:
        declare_stream(connection.channel(), STREAM, x_stream_max_segment_size_bytes=100_000)
    repeated = 0
    for _ in range(ROUNDS):
        for producer in producers:
            producer.connect(broker.url)
        target = chance.randrange(300, 1500)
        for producer in producers:
            producer.run_until(producer.confirmed + target)
        # The last messages that were sent have no confirm; some of them may be in the stream.
        broker.kill()
        for producer in producers:
            producer.connection.abort()
            repeated += producer.sent - producer.confirmed
        broker.start()
    assert repeated
    for producer in producers:
        producer.connect(broker.url)
        producer.run_until(max(producer.published, producer.confirmed + 1))
        producer.settle()
    with Connection(broker.url) as connection:
        channel = connection.channel()
        found = bodies(channel, channel.state(STREAM)[0])
    for producer in producers:
        own = [body for body in found if body.startswith(f"{producer.name}:")]
        assert own == [f"{producer.name}:{number}" for number in range(producer.sent)]
    assert len(found) == sum(producer.sent for producer in producers)
