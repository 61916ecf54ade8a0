"""The server's side: replies as messages to the queue that the request names."""

from __future__ import annotations

from warren.sdk.consume.delivery import Delivery
from warren.sdk.messages.codec import encode
from warren.sdk.publish.outgoing import TRANSIENT, Outgoing
from warren.sdk.rpc.remote_errors import ERROR_TYPE, encode_error

ANSWERED_BY = "warren-queue"
"""Header of replies to a request that came through an exchange: the queue that it was taken from."""

DIRECT = ("amq.rabbitmq.reply-to.", "amq.direct.reply-to.")
"""How addresses of direct reply-to begin, on RabbitMQ and on LavinMQ."""


def wants_reply(delivery: Delivery) -> bool:
    return bool(delivery.properties.get("reply_to"))


def reply(delivery: Delivery, kind: str | None, body: bytes, now: float) -> Outgoing:
    """The answer to a request, at its reply queue, under its correlation id.

    :param kind: its `type`; of a member of a union, or of an error.
    """
    address = str(delivery.properties["reply_to"])
    # Who asked several has to know whose answer this is.
    headers = {ANSWERED_BY: delivery.queue} if delivery.exchange else None
    outgoing = encode(body, now=now, exchange="", key=address, headers=headers)
    outgoing.set("content_type", "application/json")
    outgoing.set("type", kind)
    outgoing.set("correlation_id", delivery.properties.get("correlation_id"))
    # A reply lives no longer than its queue, which is in memory: a disk would only slow it down.
    outgoing.set("delivery_mode", TRANSIENT)
    # RabbitMQ returns every mandatory message to such an address, although it delivers it (seen with 3.10).
    outgoing.mandatory = not address.startswith(DIRECT)
    return outgoing


def error_reply(delivery: Delivery, error: Exception, now: float) -> Outgoing:
    """An error as a reply."""
    return reply(delivery, ERROR_TYPE, encode_error(error), now)
