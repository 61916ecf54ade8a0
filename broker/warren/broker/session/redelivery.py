"""What a redelivered message says of its past: the header x-delivery-count of queues with a delivery limit."""

from __future__ import annotations

from warren.broker.model.message import Message
from warren.broker.model.queue import Queue
from warren.wire.content import body_payload, header_payload, join_content
from warren.wire.properties import decode, encode
from warren.wire.tables import long_field


def with_delivery_count(queue: Queue, message: Message) -> bytes:
    """The message's content with its count of returns (https://www.rabbitmq.com/docs/quorum-queues#poison-message-handling)."""
    if queue.delivery_limit < 0 and not queue.arguments.quorum:
        return message.content
    properties = decode(header_payload(message.content))
    headers = dict(properties.headers)
    headers["x-delivery-count"] = long_field(int(message.deliveries))
    properties["headers"] = headers
    body = body_payload(message.content)
    return join_content(message.channel, encode(properties, len(body)), body)
