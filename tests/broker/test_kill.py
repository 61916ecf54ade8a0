"""kill -9 under load: confirmed messages exist after the restart and are marked redelivered."""

from __future__ import annotations

import random

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.frames import (
    BASIC_ACK,
    BASIC_DELIVER,
    confirm,
    delivery,
    publish_frames,
)
from tests.support.raw_client import RawClient, raw_connection

pytestmark = pytest.mark.slow

MESSAGES = 20_000
WINDOW = 1_000
ROUNDS = 10
QUEUE = "load"


class Load:
    """A publisher of numbered, persistent messages, with the set of the confirmed ones."""

    def __init__(self, url: str, label: str) -> None:
        self.client = RawClient(url).connect()
        self.client.open()
        self.client.select_confirms()
        self.label = label
        self.sent = 0
        self.confirmed: set[int] = set()
        self._low = 0

    def fill_window(self) -> None:
        count = min(WINDOW - (self.sent - len(self.confirmed)), MESSAGES - self.sent)
        if count < WINDOW // 4 and self.sent + count < MESSAGES:
            return
        numbers = range(self.sent + 1, self.sent + count + 1)
        bodies = (f"{self.label}:{number}".encode() for number in numbers)
        self.client.send_bytes(
            b"".join(publish_frames(1, "", QUEUE, body, persistent=True) for body in bodies)
        )
        self.sent += count

    def take_confirm(self) -> None:
        tag, multiple = confirm(self.client.expect_frame(BASIC_ACK))
        if multiple:
            self.confirmed.update(range(self._low + 1, tag + 1))
            self._low = tag
        else:
            self.confirmed.add(tag)

    def run_until(self, confirmed: int) -> None:
        while len(self.confirmed) < confirmed:
            self.fill_window()
            self.take_confirm()

    def read_last_confirms(self) -> None:
        """Read the confirms that the broker sent before it was killed: they count."""
        try:
            while True:
                self.take_confirm()
        except ConnectionError:
            self.client.abort()


def consume_all(url: str) -> list[tuple[str, bool]]:
    """Consume and acknowledge all messages of the queue; return body and `redelivered` of each."""
    with raw_connection(url) as client:
        client.open()
        _, count, _ = client.declare_queue(QUEUE, durable=True)
        client.consume(QUEUE)
        found = []
        for _ in range(count):
            message = client.expect_content(BASIC_DELIVER)
            tag, redelivered = delivery(message.frame)
            found.append((message.body.decode(), redelivered))
        if found:
            client.ack(tag, multiple=True)
    return found


@pytest.mark.timeout(1200)
def test_every_confirmed_message_is_delivered_after_a_kill(broker: BrokerProcess) -> None:
    """Kill a broker ten times on one folder, each time at another moment of a load of 20,000 messages."""
    chance = random.Random(20_000)
    for number in range(ROUNDS):
        with raw_connection(broker.url) as client:
            client.open()
            client.declare_queue(QUEUE, durable=True)
        load = Load(broker.url, f"round {number}")
        load.run_until(chance.randrange(MESSAGES))
        # Fill the window again, so that the broker is reading and writing when it is killed.
        load.fill_window()
        broker.kill()
        load.read_last_confirms()
        broker.start()

        found = consume_all(broker.url)
        mine = {int(body.partition(":")[2]) for body, _ in found if body.startswith(f"round {number}:")}
        missing = load.confirmed - mine
        assert not missing, (
            f"round {number}: {len(missing)} of {len(load.confirmed)} confirmed messages are lost"
        )
        assert mine <= set(range(1, load.sent + 1))
        fresh = [body for body, redelivered in found if not redelivered]
        assert not fresh, f"round {number}: recovered, but not marked redelivered: {fresh[:3]}"


def test_the_order_of_messages_survives_a_kill(broker: BrokerProcess) -> None:
    with raw_connection(broker.url) as client:
        client.open()
        client.declare_queue(QUEUE, durable=True)
    load = Load(broker.url, "order")
    load.run_until(5_000)
    broker.kill()
    load.read_last_confirms()
    broker.start()
    numbers = [int(body.partition(":")[2]) for body, _ in consume_all(broker.url)]
    assert numbers == sorted(numbers)
    assert len(numbers) >= 5_000
