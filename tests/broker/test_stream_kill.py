"""kill -9 while publishing to a stream: messages that were confirmed or delivered keep their offsets."""

from __future__ import annotations

import random

import pytest
from pamqp.commands import Basic

from tests.support.blocking_client import Channel, Connection
from tests.support.broker_process import BrokerProcess
from tests.support.streams import consume, declare_stream, offset_of, seen

pytestmark = pytest.mark.slow

STREAM = "s"
WINDOW = 1000
ROUNDS = 4


class Publisher:
    """A publisher of `label:0`, `label:1`, ... with the number of the confirmed ones."""

    def __init__(self, url: str, label: str) -> None:
        self.connection = Connection(url)
        self.channel = self.connection.channel()
        self.channel.confirm()
        self.label = label
        self.sent = 0
        self.confirmed = 0

    def body(self, number: int) -> bytes:
        return f"{self.label}:{number}".encode()

    def run_until(self, confirmed: int) -> None:
        while self.confirmed < confirmed:
            count = WINDOW - (self.sent - self.confirmed)
            numbers = range(self.sent, self.sent + count)
            self.connection.raw.send_bytes(
                b"".join(self.channel.encoded(STREAM, self.body(n)) for n in numbers)
            )
            self.sent += count
            self.confirmed = self.channel.next_method(Basic.Ack).delivery_tag or 0

    def read_last_confirms(self) -> None:
        """Read the confirms that the broker sent before it was killed: they count."""
        read_to_the_end(self.connection)
        for event in self.channel.events:
            if isinstance(event, Basic.Ack):
                self.confirmed = max(self.confirmed, event.delivery_tag or 0)


def read_to_the_end(connection: Connection) -> None:
    try:
        while True:
            connection.read()
    except OSError:
        connection.abort()


def arrived(channel: Channel) -> dict[int, bytes]:
    """Return the messages received so far, by offset."""
    messages = channel.deliveries(len(channel.events))
    return {offset_of(message): message.body for message in messages}


def test_confirmed_and_delivered_messages_keep_their_offsets_over_a_kill(broker: BrokerProcess) -> None:
    """Kill a broker several times on one folder, each time at another moment, with a consumer at the end of the stream."""
    chance = random.Random(5)
    before = 0
    for number in range(ROUNDS):
        publisher = Publisher(broker.url, f"round {number}")
        declare_stream(publisher.channel, STREAM)
        reader = Connection(broker.url).channel()
        consume(reader, STREAM, before, prefetch=60_000)
        publisher.run_until(1)
        while not reader.events:
            reader.connection.read()
        publisher.run_until(chance.randrange(2_000, 8_000))
        broker.kill()
        publisher.read_last_confirms()
        read_to_the_end(reader.connection)
        watched = arrived(reader)
        broker.start()

        again = Connection(broker.url)
        channel = again.channel()
        count, _ = channel.state(STREAM)
        consume(channel, STREAM, before, prefetch=60_000)
        found = dict(seen(channel, count - before))
        again.abort()
        # In order, without gaps, and nothing else.
        assert list(found.items()) == [(before + n, publisher.body(n)) for n in range(count - before)]
        assert len(found) >= publisher.confirmed, (
            f"{publisher.confirmed} were confirmed, {len(found)} are there"
        )
        assert watched
        assert watched.items() <= found.items()
        before = count
