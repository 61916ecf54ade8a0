"""A message on its way from source to target: its fingerprint, and the properties with which it is published."""

from __future__ import annotations

import time
from hashlib import blake2b
from typing import Final, NamedTuple

from warren.broker.model.delivery_headers import EXPIRY_HEADER
from warren.cli.migrate.journal import FINGERPRINT_BYTES
from warren.wire import field_tables, properties
from warren.wire.field_tables import Field
from warren.wire.properties import Properties

MIGRATION_HEADER: Final = "warren-migration"
"""Header with the id of the migration that has moved the message."""
QUEUE_HEADER: Final = "warren-migration-queue"
"""Header with the queue from which it was moved."""
SEQUENCE_HEADER: Final = "warren-migration-sequence"
"""Header with the number of the message in that queue, from 1 on. Two messages with the same three headers are copies."""
EXCHANGE_HEADER: Final = "warren-migration-exchange"
"""Header with the exchange that the message was published to, if the message could not keep it."""
OWN_HEADERS: Final = (MIGRATION_HEADER, QUEUE_HEADER, SEQUENCE_HEADER, EXCHANGE_HEADER)
BROKER_HEADERS: Final = frozenset({"x-delivery-count", "x-acquired-count", EXPIRY_HEADER, *OWN_HEADERS})
"""Headers that brokers add to a delivery, and this tool: they are no part of the message."""


class MovedMessage(NamedTuple):
    """A message that the source has delivered."""

    tag: int
    """Delivery tag at the source."""
    redelivered: bool
    """True if the source has delivered it before, or was killed since it got it."""
    exchange: bytes
    """Exchange that it was published to; of an earlier migration's message, the one before that."""
    routing_key: bytes
    properties: Properties
    headers: dict[str, Field]
    """Headers without those of the broker."""
    body: bytes
    fingerprint: bytes
    expires_at: int
    """Time at which it expires in its queue, in milliseconds since 1970; 0 if the source does not tell."""
    copy_of: tuple[str, str, int] | None
    """Migration, queue and sequence, if an earlier migration has moved it."""


def read_delivery(deliver: bytes, header: bytes, body: bytes) -> MovedMessage:
    """Return the message of a basic.deliver.

    :param deliver: payload of the method frame.
    :param header: payload of the content header frame.
    :raises field_tables.TableError: if its properties are malformed.
    """
    position = 5 + deliver[4]
    tag = int.from_bytes(deliver[position : position + 8], "big")
    redelivered = bool(deliver[position + 8] & 1)
    position += 9
    exchange = deliver[position + 1 : position + 1 + deliver[position]]
    position += 1 + len(exchange)
    key = deliver[position + 1 : position + 1 + deliver[position]]
    found = properties.decode(header, "x-death")
    headers = found.headers
    expires_at, copy_of = 0, None
    if not BROKER_HEADERS.isdisjoint(headers):
        expires_at = _number(headers, EXPIRY_HEADER)
        copy_of = _copy_of(headers)
        original = headers.get(EXCHANGE_HEADER)
        if copy_of is not None and original is not None:
            exchange = original.raw[5:]
        headers = {name: field for name, field in headers.items() if name not in BROKER_HEADERS}
    fingerprint = fingerprint_of(exchange, key, found, headers, body)
    return MovedMessage(
        tag, redelivered, exchange, key, found, headers, body, fingerprint, expires_at, copy_of
    )


def fingerprint_of(
    exchange: bytes, key: bytes, found: Properties, headers: dict[str, Field], body: bytes
) -> bytes:
    """Return the fingerprint of a message: of all that a consumer gets, but the expiration and headers of brokers."""
    parts = [exchange, key]
    for name, value in found.items():
        if name not in ("headers", "expiration"):
            parts += (name.encode(), value if isinstance(value, bytes) else str(value).encode())
    parts += (field_tables.join(headers), body)
    lengths = ",".join([str(len(part)) for part in parts]).encode()
    return blake2b(b"".join((lengths, *parts)), digest_size=FINGERPRINT_BYTES).digest()


def published_header(
    message: MovedMessage, migration: Field, queue: Field, sequence: int, keeps_exchange: bool
) -> bytes:
    """Return the payload of the content header with which a message is published to the target.

    :param migration: id of the migration, as a header.
    :param queue: name of the queue, as a header.
    :param sequence: number of the message in its queue.
    :param keeps_exchange: False if the target's consumers will see another exchange.
    """
    headers = dict(message.headers)
    headers[MIGRATION_HEADER] = migration
    headers[QUEUE_HEADER] = queue
    headers[SEQUENCE_HEADER] = field_tables.long_field(sequence)
    if not keeps_exchange:
        raw = b"S" + len(message.exchange).to_bytes(4, "big") + message.exchange
        headers[EXCHANGE_HEADER] = Field("S", None, raw)
    found = dict(message.properties)
    found["headers"] = headers
    if message.expires_at:
        remaining = max(0, message.expires_at - int(time.time() * 1000))
        found["expiration"] = str(remaining).encode()
    return properties.encode(found, len(message.body))


def fingerprint_of_published(message: MovedMessage, header: bytes, body: bytes) -> bytes:
    """Return the fingerprint of a message as it is published to the target, from its encoded content."""
    found = properties.decode(header, "x-death")
    headers = {name: field for name, field in found.headers.items() if name not in BROKER_HEADERS}
    return fingerprint_of(message.exchange, message.routing_key, found, headers, body)


def _copy_of(headers: dict[str, Field]) -> tuple[str, str, int] | None:
    migration, queue = headers.get(MIGRATION_HEADER), headers.get(QUEUE_HEADER)
    sequence = _number(headers, SEQUENCE_HEADER)
    if migration is None or queue is None or not sequence:
        return None
    return str(migration.value), str(queue.value), sequence


def _number(headers: dict[str, Field], name: str) -> int:
    field = headers.get(name)
    return field.value if field is not None and field.is_integer and isinstance(field.value, int) else 0
