"""Assertions about queues that allow for RabbitMQ's queues being asynchronous.

They answer how much they hold before they look at what was published, acknowledged or returned a moment ago.
"""

from __future__ import annotations

from tests.support.blocking_client import Channel, Message
from tests.support.polling import wait_until


def holds(channel: Channel, queue: str, count: int) -> None:
    """Assert that this number of messages is ready: at once with Warren, after a while with RabbitMQ."""
    if channel.connection.is_rabbitmq:
        wait_until(lambda: channel.ready(queue) == count, f"{count} are ready")
    else:
        assert channel.ready(queue) == count


def takes_exactly(channel: Channel, queue: str, count: int) -> list[Message]:
    """Assert that exactly this number of messages is delivered next; return them."""
    found = channel.deliveries(count)
    assert channel.delivered(queue) == []
    return found
