"""Durability of quorum queues and streams: they store every message, whatever its delivery mode, as RabbitMQ's do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pamqp.commands import Tx

from tests.support.blocking_client import Channel, Connection, Message
from tests.support.broker_process import PATIENT, BrokerProcess
from tests.support.http_client import HttpApi
from tests.support.polling import wait_until
from tests.support.processes import free_port
from warren.broker.model.vhost.bulk_publish import BULK_COPIES

MODES: tuple[int | None, ...] = (None, 1, 2)
"""Delivery modes of publishes; None for a message without the property."""
QUORUM: dict[str, Any] = {"durable": True, "x_queue_type": "quorum"}
ENDS = ("stop", "kill")


def properties_of(mode: int | None) -> dict[str, Any]:
    return {} if mode is None else {"delivery_mode": mode}


def body_of(mode: int | None) -> bytes:
    return f"delivery mode {mode}".encode()


BODIES = [body_of(mode) for mode in MODES]


@dataclass
class Publisher:
    """Connection to a broker, by which messages are put into the quorum queue `queue`."""

    broker: BrokerProcess
    api: HttpApi
    channel: Channel
    queue: str
    published: int = 0
    """Number of messages that were published on the channel."""

    def publish(self, *keys: str, exchange: str = "", **properties: Any) -> None:
        """Publish a message of each delivery mode, and wait for the confirms.

        :param keys: routing keys; the name of the queue by default.
        """
        for key in keys or (self.queue,):
            for mode in MODES:
                self.channel.publish(
                    key, body_of(mode), exchange=exchange, **properties_of(mode), **properties
                )
                self.published += 1
        self.channel.settled_until(self.published)

    def sync(self) -> None:
        """Wait until all that was done before is on disk: the confirm of a later publish proves it."""
        self.channel.declare("sync", **QUORUM)
        self.channel.publish("sync")
        self.published += 1
        self.channel.settled_until(self.published)


def publish(publisher: Publisher) -> None:
    publisher.publish()


def publish_to_two_queues(publisher: Publisher) -> None:
    channel, queue = publisher.channel, publisher.queue
    channel.declare(f"{queue}.classic", durable=True)
    channel.declare_exchange(f"{queue}.fan", durable=True)
    for name in (queue, f"{queue}.classic"):
        channel.bind(name, f"{queue}.fan")
    publisher.publish("", exchange=f"{queue}.fan")


def publish_in_bulk(publisher: Publisher) -> None:
    channel, queue = publisher.channel, publisher.queue
    channel.declare_exchange(f"{queue}.fan", durable=True)
    channel.bind(queue, f"{queue}.fan")
    for number in range(BULK_COPIES + 1):
        channel.bind(channel.declare(f"{queue}.{number}", exclusive=True), f"{queue}.fan")
    publisher.publish("", exchange=f"{queue}.fan")


def publish_in_transaction(publisher: Publisher) -> None:
    channel = publisher.channel.connection.channel()
    channel.call(Tx.Select(), Tx.SelectOk)
    for mode in MODES:
        channel.publish(publisher.queue, body_of(mode), **properties_of(mode))
    channel.call(Tx.Commit(), Tx.CommitOk)
    channel.close()


def publish_in_large_transaction(publisher: Publisher) -> None:
    channel, queue = publisher.channel.connection.channel(), publisher.queue
    channel.declare(f"{queue}.filler", exclusive=True)
    channel.call(Tx.Select(), Tx.SelectOk)
    for _ in range(BULK_COPIES):
        channel.publish(f"{queue}.filler")
    for mode in MODES:
        channel.publish(queue, body_of(mode), **properties_of(mode))
    channel.call(Tx.Commit(), Tx.CommitOk)


def publish_over_http(publisher: Publisher) -> None:
    for mode in MODES:
        answer = publisher.api.ask(
            "POST",
            "exchanges/%2F/amq.default/publish",
            {
                "routing_key": publisher.queue,
                "properties": properties_of(mode),
                "payload": body_of(mode).decode(),
                "payload_encoding": "string",
            },
        )
        assert (answer.status, answer.body) == (200, {"routed": True})


def reject_from_a_classic_queue(publisher: Publisher) -> None:
    _dead_letter(publisher, {})


def reject_from_a_quorum_queue(publisher: Publisher) -> None:
    _dead_letter(publisher, {"x_queue_type": "quorum"})


def reject_into_many_queues(publisher: Publisher) -> None:
    channel, queue = publisher.channel, publisher.queue
    channel.declare_exchange(f"{queue}.fan", durable=True)
    channel.bind(queue, f"{queue}.fan")
    for number in range(BULK_COPIES + 1):
        channel.bind(channel.declare(f"{queue}.{number}", exclusive=True), f"{queue}.fan")
    _dead_letter(publisher, {}, f"{queue}.fan")


def _dead_letter(publisher: Publisher, arguments: dict[str, Any], exchange: str = "") -> None:
    """Publish to a queue whose rejected messages go to the quorum queue, and reject all."""
    channel, queue = publisher.channel, publisher.queue
    channel.declare(
        f"{queue}.source",
        durable=True,
        x_dead_letter_exchange=exchange,
        x_dead_letter_routing_key=queue,
        **arguments,
    )
    publisher.publish(f"{queue}.source")
    for _ in MODES:
        message = channel.get(f"{queue}.source")
        assert message is not None
        channel.reject(message.tag)
    wait_until(lambda: channel.ready(queue) == len(MODES), f"{queue} has the dead letters")
    publisher.sync()


def publish_with_ended_delay(publisher: Publisher) -> None:
    _delay(publisher, 1)
    wait_until(lambda: publisher.channel.ready(publisher.queue) == len(MODES), "the delays have ended")
    publisher.sync()


def publish_with_delay(publisher: Publisher) -> None:
    _delay(publisher, 2000)


def _delay(publisher: Publisher, milliseconds: int) -> None:
    channel, queue = publisher.channel, publisher.queue
    channel.declare_exchange(f"{queue}.delayed", "x-delayed-message", durable=True, x_delayed_type="fanout")
    channel.bind(queue, f"{queue}.delayed")
    publisher.publish("", exchange=f"{queue}.delayed", headers={"x-delay": milliseconds})


def requeue(publisher: Publisher) -> None:
    publisher.publish()
    channel = publisher.channel.connection.channel()
    while (message := channel.get(publisher.queue)) is not None:
        last = message.tag
    channel.nack(last, multiple=True, requeue=True)
    channel.close()


WAYS: tuple[Callable[[Publisher], None], ...] = (
    publish,
    publish_to_two_queues,
    publish_in_bulk,
    publish_in_transaction,
    publish_in_large_transaction,
    publish_over_http,
    reject_from_a_classic_queue,
    reject_from_a_quorum_queue,
    reject_into_many_queues,
    publish_with_ended_delay,
    publish_with_delay,
    requeue,
)
"""Ways by which messages enter a queue."""


@contextmanager
def served(folder: Path) -> Iterator[tuple[BrokerProcess, HttpApi]]:
    """Run a broker with the HTTP API as a process."""
    port = free_port()
    with BrokerProcess(folder, *PATIENT, "--management-port", str(port)) as broker:
        yield broker, HttpApi(f"http://127.0.0.1:{port}")


def end(broker: BrokerProcess, how: str) -> None:
    """End the broker in one of `ENDS`, and start it again."""
    broker.kill() if how == "kill" else broker.stop()
    broker.start()


@pytest.mark.sampled(2)
@pytest.mark.processes
@pytest.mark.parametrize("how", ENDS)
def test_a_quorum_queue_keeps_confirmed_messages_of_every_delivery_mode(tmp_path: Path, how: str) -> None:
    with served(tmp_path / "data") as (broker, api):
        for way in WAYS:
            with Connection(broker.url) as connection:
                channel = connection.channel()
                channel.declare(way.__name__, **QUORUM)
                channel.confirm()
                way(Publisher(broker, api, channel, way.__name__))
        end(broker, how)
        with Connection(broker.url) as connection:
            channel = connection.channel()
            wait_until(
                lambda: channel.ready(publish_with_delay.__name__) == len(MODES),
                "the delays have ended",
            )
            found = {way.__name__: taken(channel, way.__name__) for way in WAYS}
            assert {way: [message.body for message in messages] for way, messages in found.items()} == {
                way.__name__: BODIES for way in WAYS
            }
            # A message keeps the property that its publisher has set.
            assert {way: [mode_of(message) for message in messages] for way, messages in found.items()} == {
                way.__name__: list(MODES) for way in WAYS
            }
            assert [message.headers.get("x-delivery-count", 0) for message in found["requeue"]] == [0, 0, 0]
            assert [message.redelivered for message in found["requeue"]] == [True, True, True]
            # The classic queue that got the same messages keeps the persistent one only.
            classic = taken(channel, f"{publish_to_two_queues.__name__}.classic")
            assert [message.body for message in classic] == [body_of(2)]


def taken(channel: Channel, queue: str) -> list[Message]:
    """Get all messages of a queue."""
    found = []
    while (message := channel.get(queue, no_ack=True)) is not None:
        found.append(message)
    return found


def mode_of(message: Message) -> int | None:
    mode: int | None = message.properties.delivery_mode
    return mode


@pytest.mark.sampled(2)
@pytest.mark.processes
@pytest.mark.parametrize("how", ENDS)
def test_a_stream_keeps_confirmed_messages_of_every_delivery_mode(tmp_path: Path, how: str) -> None:
    # A stream takes no message back.
    ways = [way for way in WAYS if way is not requeue]
    with served(tmp_path / "data") as (broker, api):
        for way in ways:
            with Connection(broker.url) as connection:
                channel = connection.channel()
                channel.declare(way.__name__, durable=True, x_queue_type="stream")
                channel.confirm()
                way(Publisher(broker, api, channel, way.__name__))
        end(broker, how)
        with Connection(broker.url) as connection:
            channel = connection.channel()
            wait_until(
                lambda: channel.ready(publish_with_delay.__name__) == len(MODES),
                "the delays have ended",
            )
            assert {way.__name__: channel.ready(way.__name__) for way in ways} == {
                way.__name__: len(MODES) for way in ways
            }
