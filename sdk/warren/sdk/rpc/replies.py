"""Server side of calls: build replies for the queue in the request's `reply_to`."""

from __future__ import annotations

from warren.sdk.consume.delivery import Delivery
from warren.sdk.messages.codec import encode
from warren.sdk.publish.outgoing import TRANSIENT, Outgoing
from warren.sdk.rpc.remote_errors import ERROR_TYPE, encode_error

ANSWERED_BY = "warren-queue"
"""Header of replies to a request that came through an exchange: name of the queue that the server consumed it from."""

DIRECT = ("amq.rabbitmq.reply-to.", "amq.direct.reply-to.")
"""Prefixes of direct reply-to addresses on RabbitMQ and on LavinMQ."""


def wants_reply(delivery: Delivery) -> bool:
    """Return whether the sender of the message waits for a reply: its property `reply_to` is set."""
    return bool(delivery.properties.get("reply_to"))


def reply(delivery: Delivery, kind: str | None, body: bytes, now: float) -> Outgoing:
    """Return the reply to a request, for its reply queue and with its correlation id.

    :param kind: the `type` property of the reply: `warren.error` for an error;
        the name of the member if the reply type is a union; otherwise None.
    :param now: Unix time in seconds.
    :param body: the answer, encoded as JSON.
    """
    address = str(delivery.properties["reply_to"])
    # A caller that asked several queues must be able to tell their replies apart.
    headers = {ANSWERED_BY: delivery.queue} if delivery.exchange else None
    outgoing = encode(body, now=now, exchange="", key=address, headers=headers)
    outgoing.set("content_type", "application/json")
    outgoing.set("type", kind)
    outgoing.set("correlation_id", delivery.properties.get("correlation_id"))
    # Transient: the reply queue does not survive a restart of the broker, so writing the reply to disk is of no use.
    outgoing.set("delivery_mode", TRANSIENT)
    # RabbitMQ returns every mandatory message to such an address, although it delivers it (seen with 3.10).
    outgoing.mandatory = not address.startswith(DIRECT)
    return outgoing


def error_reply(delivery: Delivery, error: BaseException, now: float) -> Outgoing:
    """Return an error reply to a request.

    :param now: Unix time in seconds.
    """
    return reply(delivery, ERROR_TYPE, encode_error(error), now)
