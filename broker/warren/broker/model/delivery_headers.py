"""Contents for receivers: counts of deliveries are added, BCC is removed."""

from __future__ import annotations

from typing import Final

from warren.broker.model.message import Message
from warren.broker.model.queue.queue import Queue
from warren.wire.content import body_payload, header_payload, join_content
from warren.wire.field_tables import long_field
from warren.wire.properties import decode, encode

EXPIRY_ARGUMENT: Final = "x-warren-show-expiry"
"""Argument of basic.consume: true to add EXPIRY_HEADER to each delivery of a message that expires."""
EXPIRY_HEADER: Final = "x-warren-expires-at"
"""Header with the time at which a message expires in its queue, in milliseconds since 1970."""


def delivered_content(queue: Queue, message: Message, shows_expiry: bool = False) -> bytes:
    """Return a message's content as a consumer gets it.

    If the queue has a delivery limit or is a quorum queue, the header x-acquired-count counts requeues, and
    x-delivery-count those that count against the limit
    (https://www.rabbitmq.com/docs/quorum-queues#poison-message-handling). The header BCC is removed
    (https://www.rabbitmq.com/docs/sender-selected).

    :param shows_expiry: True to add the header x-warren-expires-at, if the message expires.
    """
    expires = int(message.expires) if shows_expiry else 0
    counts = message.acquired_count > 0 and (queue.delivery_limit >= 0 or queue.arguments.quorum)
    if not counts and not message.has_bcc and not expires:
        return message.content
    if not counts:
        return _rewrite_headers(message, 0, 0, expires)
    acquired = int(message.acquired_count) if queue.counts_returns_apart else 0
    return _rewrite_headers(message, acquired, int(message.delivery_count), expires)


def returned_content(message: Message) -> bytes:
    """Return a message's content as its publisher gets it back with basic.return: without the header BCC."""
    return _rewrite_headers(message, 0, 0, 0) if message.has_bcc else message.content


def _rewrite_headers(message: Message, acquired: int, deliveries: int, expires: int) -> bytes:
    """Return a message's content without BCC, with those of the headers of counts and of expiry that are not 0."""
    properties = decode(header_payload(message.content))
    headers = dict(properties.headers)
    headers.pop("BCC", None)
    if acquired:
        headers["x-acquired-count"] = long_field(acquired)
    if deliveries:
        headers["x-delivery-count"] = long_field(deliveries)
    if expires:
        headers[EXPIRY_HEADER] = long_field(expires)
    properties["headers"] = headers
    body = body_payload(message.content)
    return join_content(message.channel, encode(properties, len(body)), body)
