"""A delivery that is published on: the same message, with its id, properties and bytes, at another address."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from warren.sdk.consume.delivery import Delivery
from warren.sdk.publish.outgoing import PERSISTENT, Outgoing
from warren.wire.field_tables import TableError

ORIGIN_EXCHANGE = "warren-exchange"
ORIGIN_KEY = "warren-key"
"""Where a message was published first, on those that have been delayed, retried or dead-lettered since."""

DROPPED_PROPERTIES = frozenset({"expiration", "user_id"})
"""`expiration` would end the copy too; `user_id` must be the publisher's own (RabbitMQ, "Validated User-ID")."""

ROUTING_HEADERS = frozenset({"CC", "BCC"})
"""They would send the copy to further queues (RabbitMQ, "Sender-selected Distribution")."""

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
"""What a broker notes about past deaths. RabbitMQ before 4.0 believes what a publisher sends of it, and drops a message
that expires twice in one queue without a rejection as a cycle (RabbitMQ, "Dead Letter Exchanges")."""


class Address(NamedTuple):
    """Where a message was published."""

    exchange: str
    key: str


def origin(delivery: Delivery) -> Address:
    """Where the message was published first: as its headers say, else as it was delivered."""
    headers = delivery.headers
    exchange, key = headers.get(ORIGIN_EXCHANGE), headers.get(ORIGIN_KEY)
    if isinstance(exchange, str) and isinstance(key, str):
        return Address(exchange, key)
    return Address(delivery.exchange, delivery.routing_key)


def forwarded(
    delivery: Delivery, exchange: str, key: str, headers: Mapping[str, Any] | None = None
) -> Outgoing:
    """The message for another address; persistent, and without what belonged to its first way only.

    :param headers: set in the header table; None removes one.
    """
    table: dict[str, Any] = {
        name: field for name, field in fields(delivery).items() if name not in BROKER_HEADERS
    }
    table.update(headers or {})
    return copy(delivery, exchange, key, {name: value for name, value in table.items() if value is not None})


def copy(delivery: Delivery, exchange: str, key: str, headers: dict[str, Any]) -> Outgoing:
    """Id, properties and body of the delivery as it came, persistent, with these headers."""
    delivery = delivery.original
    kept = {name: value for name, value in delivery.properties.items() if name not in DROPPED_PROPERTIES}
    kept["delivery_mode"] = PERSISTENT
    return Outgoing(exchange, key, kept, headers, delivery.body)


def fields(delivery: Delivery) -> dict[str, Any]:
    """The headers as they came; a table that nobody can read is left out, so that the message itself is not lost."""
    try:
        return {
            name: field for name, field in delivery.original.fields().items() if name not in ROUTING_HEADERS
        }
    except TableError:
        return {}
