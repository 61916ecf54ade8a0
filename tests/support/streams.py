"""Streams on the blocking client: declare, publish, consume from an offset."""

from __future__ import annotations

from typing import Any

from pamqp.commands import Basic

from tests.support.blocking_client import Channel, Message

PREFETCH = 100


def declare_stream(channel: Channel, name: str, **arguments: Any) -> str:
    """Declare a stream and return its name; `x_max_age="1h"` is the argument x-max-age."""
    return channel.declare(name, durable=True, x_queue_type="stream", **arguments)


def publish(channel: Channel, stream: str, *bodies: bytes, **properties: Any) -> None:
    """Publish one by one, each after the confirm of the one before, so that each is a chunk of its own."""
    confirming = channel.connection.channel()
    confirming.confirm()
    for number, body in enumerate(bodies, 1):
        confirming.publish(stream, body, **properties)
        confirming.settled_until(number)
    confirming.close()


def publish_at_once(channel: Channel, stream: str, *bodies: bytes) -> None:
    """Publish all messages, then wait for the confirms."""
    confirming = channel.connection.channel()
    confirming.confirm()
    confirming.connection.raw.send_bytes(b"".join(confirming.encoded(stream, body) for body in bodies))
    confirming.settled(len(bodies))
    confirming.close()


def consume(
    channel: Channel,
    stream: str,
    offset: object = None,
    tag: str = "",
    *,
    prefetch: int = PREFETCH,
    exclusive: bool = False,
    **arguments: Any,
) -> str:
    """Consume from an x-stream-offset; None omits it."""
    channel.qos(prefetch)
    table = {name.replace("_", "-"): value for name, value in arguments.items()}
    if offset is not None:
        table["x-stream-offset"] = offset
    method = Basic.Consume(queue=stream, consumer_tag=tag, exclusive=exclusive, arguments=table)
    return str(channel.call(method, Basic.ConsumeOk).consumer_tag)


def offset_of(message: Message) -> int:
    return int(message.headers["x-stream-offset"])


def receive_offsets(channel: Channel, count: int) -> list[int]:
    """Receive and acknowledge the next `count` deliveries one by one; return their offsets."""
    found = []
    for _ in range(count):
        (message,) = channel.deliveries(1)
        found.append(offset_of(message))
        channel.ack(message.tag)
    return found


def seen(channel: Channel, count: int) -> list[tuple[int, bytes]]:
    """Return offset and body of the next `count` deliveries."""
    return [(offset_of(message), message.body) for message in channel.deliveries(count)]


def numbered(first: int, last: int) -> list[tuple[int, bytes]]:
    """Return the result of `seen` if each body is its offset, from the first to the last."""
    return [(number, b"%d" % number) for number in range(first, last + 1)]


def bodies(first: int, last: int) -> list[bytes]:
    return [body for _, body in numbered(first, last)]
