"""What is in a queue, and what came of it, where a broker may take its time: RabbitMQ's queues are processes of their own.

They answer how much they hold before they look at what was published, acknowledged or returned a moment ago.
"""

from __future__ import annotations

from tests.support.blocking_client import Channel, Message
from tests.support.processes import wait_until


def holds(channel: Channel, queue: str, count: int) -> None:
    """So many messages are ready: at once here, in a while at RabbitMQ."""
    if channel.connection.is_rabbitmq:
        wait_until(lambda: channel.ready(queue) == count, f"{count} are ready")
    else:
        assert channel.ready(queue) == count


def takes_exactly(channel: Channel, queue: str, count: int) -> list[Message]:
    """So many messages are delivered next, and no more of this queue: what they are."""
    found = channel.deliveries(count)
    assert channel.delivered(queue) == []
    return found
