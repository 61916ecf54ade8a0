"""Forwarding: publish a delivery again, with its id, properties and body, to another address."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from warren.sdk.consume.delivery import DEADLINE, Delivery
from warren.sdk.publish.outgoing import PERSISTENT, Outgoing
from warren.wire.field_tables import TableError

ORIGIN_EXCHANGE = "warren-exchange"
"""Header with the exchange of the first publish, on messages that were delayed, retried or dead-lettered since."""
ORIGIN_KEY = "warren-key"
"""Header with the routing key of the first publish, on messages that were delayed, retried or dead-lettered since."""

DROPPED_PROPERTIES = frozenset({"expiration", "user_id"})
"""Properties that a copy does not keep: `expiration` would expire the copy too, also in a queue in which it waits for its
next attempt; `user_id` must be the publisher's own (RabbitMQ, "Validated User-ID")."""

ROUTING_HEADERS = frozenset({"CC", "BCC"})
"""Headers that a copy does not keep: they would route it to further queues (RabbitMQ, "Sender-selected Distribution")."""

BROKER_HEADERS = frozenset(
    {
        "x-death",
        "x-delivery-count",
        "x-first-death-exchange",
        "x-first-death-queue",
        "x-first-death-reason",
        "x-last-death-exchange",
        "x-last-death-queue",
        "x-last-death-reason",
    }
)
"""Headers in which a broker records dead-lettering. A copy does not keep them. RabbitMQ before 4.0 trusts these headers
in a publish: if they show that the message expired in the same queue before, and was never rejected, it assumes a cycle
and drops the message (RabbitMQ, "Dead Letter Exchanges")."""


class Address(NamedTuple):
    """Exchange and routing key of a publish."""

    exchange: str
    key: str


def origin(delivery: Delivery) -> Address:
    """Return the exchange and routing key that a message was first published to.

    They are read from the headers of a forwarded message; without these headers, they are those of the delivery.
    """
    headers = delivery.readable_headers
    exchange, key = headers.get(ORIGIN_EXCHANGE), headers.get(ORIGIN_KEY)
    if isinstance(exchange, str) and isinstance(key, str):
        return Address(exchange, key)
    return Address(delivery.exchange, delivery.routing_key)


def forwarded(
    delivery: Delivery, exchange: str, key: str, headers: Mapping[str, Any] | None = None
) -> Outgoing:
    """Return a copy of a received message for another address (`exchange` and routing key `key`), persistent and with
    the same id and body.

    Properties and headers that must not apply to the copy are left
    out: `DROPPED_PROPERTIES`, `ROUTING_HEADERS` and `BROKER_HEADERS`. The copy of a request has a header with the deadline
    of its caller, after which it is not handled.

    :param headers: headers to set; a value of None removes the header.
    """
    table: dict[str, Any] = {
        name: field for name, field in fields(delivery).items() if name not in BROKER_HEADERS
    }
    try:
        deadline = delivery.original.deadline
    except TableError:
        deadline = None
    if deadline is not None:
        table[DEADLINE] = int(deadline.timestamp() * 1000)
    table.update(headers or {})
    return copy(delivery, exchange, key, {name: value for name, value in table.items() if value is not None})


def copy(delivery: Delivery, exchange: str, key: str, headers: dict[str, Any]) -> Outgoing:
    """Return a persistent message for `exchange` and the routing key `key`, with the delivery's body and properties as
    received, and with the given headers.

    The properties of `DROPPED_PROPERTIES` are left out.
    """
    delivery = delivery.original
    kept = {name: value for name, value in delivery.properties.items() if name not in DROPPED_PROPERTIES}
    kept["delivery_mode"] = PERSISTENT
    return Outgoing(exchange, key, kept, headers, delivery.body)


def fields(delivery: Delivery) -> dict[str, Any]:
    """Return the headers of the delivery by name, as received, without
    `CC` and `BCC`, which would route a copy to further queues.

    If the header table is malformed, return no headers, so that the message can still be forwarded.
    """
    try:
        return {
            name: field for name, field in delivery.original.fields().items() if name not in ROUTING_HEADERS
        }
    except TableError:
        return {}
