"""Clients of the broker that the page's tests look at: a publisher, a consumer, and what they publish and consume."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tests.support.blocking_client import Channel, Connection
from tests.support.in_process_broker import InProcessBroker

HOSTILE: Final = "<img src=x onerror=alert(1)>"
ROUNDS: Final = 24
"""Samples of the traffic: two minutes."""
SECONDS: Final = 5
"""Seconds between two samples of the broker's statistics."""


@contextmanager
def connected(served: InProcessBroker, name: str) -> Iterator[Channel]:
    """Open a connection with a channel; at the end it may be gone, because the page closed it.

    :param name: what the client calls the connection.
    """
    properties = {
        "product": "Orders",
        "version": "2.1",
        "platform": "Python",
        "connection_name": name,
        "capabilities": {"basic.nack": True, "consumer_cancel_notify": True},
    }
    connection = Connection(served.url, properties=properties)
    try:
        yield connection.channel()
    finally:
        connection.abort()


def move_statistics(served: InProcessBroker, seconds: int) -> None:
    """Move the clock of the broker's statistics, and take a sample: they do not follow the virtual clock."""
    assert served.broker is not None
    collector = served.broker._collector
    assert collector is not None

    def move() -> None:
        collector._offset += seconds
        list(collector.sample_in_steps())

    served.call(move)


@contextmanager
def shop(served: InProcessBroker) -> Iterator[tuple[Channel, Channel]]:
    """Publish orders for two minutes of the broker's statistics, and consume some.

    Yields the channels of the publisher and of the consumer.
    """
    with connected(served, "order-service") as publisher, connected(served, "shipping") as consumer:
        publisher.declare_exchange("orders", "topic", durable=True)
        publisher.declare_exchange("audit", "fanout", durable=True, auto_delete=True)
        publisher.declare("orders.dead", durable=True)
        publisher.declare(
            "orders.new",
            durable=True,
            x_message_ttl=86_400_000,
            x_max_length=100_000,
            x_dead_letter_exchange="",
            x_dead_letter_routing_key="orders.dead",
        )
        publisher.declare("orders.history", durable=True, x_queue_type="stream", x_max_age="7D")
        publisher.declare("orders.bulk", durable=True, x_queue_type="quorum", x_delivery_limit=5)
        publisher.bind("orders.new", "orders", "order.placed")
        publisher.bind("orders.history", "orders", "#")
        publisher.confirm()
        consumer.qos(20)
        consumer.consume("orders.new", "worker-1")
        total = 0
        for turn in range(ROUNDS):
            published = 10 + turn % 7
            total += published
            for number in range(published):
                publisher.publish(
                    "order.placed",
                    f'{{"order": {turn * 100 + number}}}'.encode(),
                    exchange="orders",
                    delivery_mode=2,
                )
            publisher.settled_until(total)
            for message in consumer.deliveries(min(published, 12)):
                consumer.ack(message.tag)
            move_statistics(served, SECONDS)
        yield publisher, consumer
