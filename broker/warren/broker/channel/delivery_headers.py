"""Header changes for receivers: x-delivery-count is added, BCC removed."""

from __future__ import annotations

from warren.broker.model.message import Message
from warren.broker.model.queue.queue import Queue
from warren.wire.content import body_payload, header_payload, join_content
from warren.wire.field_tables import long_field
from warren.wire.properties import decode, encode


def delivered_content(queue: Queue, message: Message) -> bytes:
    """Return a message's content as a consumer gets it.

    The header x-delivery-count counts requeues, if the queue has a delivery limit or is a quorum queue
    (https://www.rabbitmq.com/docs/quorum-queues#poison-message-handling). The header BCC is removed
    (https://www.rabbitmq.com/docs/sender-selected).
    """
    counts = message.delivery_count > 0 and (queue.delivery_limit >= 0 or queue.arguments.quorum)
    if not counts and not message.has_bcc:
        return message.content
    return _rewrite_headers(message, int(message.delivery_count) if counts else 0)


def returned_content(message: Message) -> bytes:
    """Return a message's content as its publisher gets it back with basic.return: without the header BCC."""
    return _rewrite_headers(message, 0) if message.has_bcc else message.content


def _rewrite_headers(message: Message, deliveries: int) -> bytes:
    """Return a message's content without BCC, and with x-delivery-count=`deliveries` unless that is 0."""
    properties = decode(header_payload(message.content))
    headers = dict(properties.headers)
    headers.pop("BCC", None)
    if deliveries:
        headers["x-delivery-count"] = long_field(deliveries)
    properties["headers"] = headers
    body = body_payload(message.content)
    return join_content(message.channel, encode(properties, len(body)), body)
