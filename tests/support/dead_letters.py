"""Queues whose messages die, and what their dead letters say about it."""

from __future__ import annotations

from typing import Any

from tests.support.blocking_client import Channel, Message
from tests.support.processes import wait_until


def dying(channel: Channel, grave: str, **arguments: Any) -> str:
    """A queue whose dead letters go to another, by the default exchange."""
    return channel.declare(
        exclusive=True, x_dead_letter_exchange="", x_dead_letter_routing_key=grave, **arguments
    )


def arrived(channel: Channel, queue: str) -> Message:
    """The next message of a queue, once it is there."""
    found: list[Message] = []

    def look() -> bool:
        message = channel.get(queue, no_ack=True)
        found.extend([] if message is None else [message])
        return bool(found)

    wait_until(look, f"a message is in {queue}")
    return found[0]


def deaths(message: Message) -> list[dict[str, Any]]:
    return [dict(death) for death in message.headers["x-death"]]


def reasons(message: Message) -> list[tuple[str, str, int]]:
    """Queue, reason and count of each entry of x-death."""
    return [(death["queue"], death["reason"], death["count"]) for death in deaths(message)]
