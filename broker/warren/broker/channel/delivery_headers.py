"""What the receiver of a message sees otherwise than its publisher wrote it: how often it came back, and no blind copies."""

from __future__ import annotations

from warren.broker.model.message import Message
from warren.broker.model.queue.queue import Queue
from warren.wire.content import body_payload, header_payload, join_content
from warren.wire.field_tables import long_field
from warren.wire.properties import decode, encode


def as_received(queue: Queue, message: Message) -> bytes:
    """The content that a receiver gets.

    With the count of returns in x-delivery-count, if the queue has a delivery limit
    (https://www.rabbitmq.com/docs/quorum-queues#poison-message-handling), and without the header BCC
    (https://www.rabbitmq.com/docs/sender-selected).
    """
    counts = message.delivery_count > 0 and (queue.delivery_limit >= 0 or queue.arguments.quorum)
    if not counts and not message.has_bcc:
        return message.content
    return changed(message, int(message.delivery_count) if counts else 0)


def as_returned(message: Message) -> bytes:
    """The content that a publisher gets back in basic.return: without the header BCC as well."""
    return changed(message, 0) if message.has_bcc else message.content


def changed(message: Message, deliveries: int) -> bytes:
    """The content without BCC, and with the count of returns unless it is 0."""
    properties = decode(header_payload(message.content))
    headers = dict(properties.headers)
    headers.pop("BCC", None)
    if deliveries:
        headers["x-delivery-count"] = long_field(deliveries)
    properties["headers"] = headers
    body = body_payload(message.content)
    return join_content(message.channel, encode(properties, len(body)), body)
