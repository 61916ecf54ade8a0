"""Dead-lettering queues, and the x-death headers of their dead letters."""

from __future__ import annotations

from typing import Any

from tests.support.blocking_client import Channel, Message
from tests.support.polling import wait_until


def dying(channel: Channel, dead_letter_queue: str, **arguments: Any) -> str:
    """Declare a queue whose dead letters go to another queue through the default exchange; return its name."""
    return channel.declare(
        exclusive=True, x_dead_letter_exchange="", x_dead_letter_routing_key=dead_letter_queue, **arguments
    )


def arrived(channel: Channel, queue: str) -> Message:
    """Wait for the next message of a queue and return it."""
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
    """Return queue, reason and count of each entry of x-death."""
    return [(death["queue"], death["reason"], death["count"]) for death in deaths(message)]
