"""Conversion of broker objects to JSON: names, field tables, and identifiers of queues, connections and channels.

The identifiers stand where RabbitMQ lists Erlang process ids (pid).
"""

from __future__ import annotations

import math
from decimal import Decimal
from typing import TYPE_CHECKING

from warren.broker.management.request import Json
from warren.wire import field_tables

if TYPE_CHECKING:
    from warren.broker.channel.channel import Channel
    from warren.broker.connection.client_session import ClientSession
    from warren.broker.model.queue.queue import Queue


def name_text(name: bytes) -> str:
    """Decode the name of an AMQP object. Bytes that are not UTF-8 become lone surrogates."""
    return name.decode("utf-8", "surrogateescape")


def typed_table(table: bytes) -> list[Json]:
    """Convert an encoded field table to [name, type, value] triples, as RabbitMQ lists it; empty if malformed."""
    try:
        fields = field_tables.decode_fields(table)
    except field_tables.TableError:
        return []
    return [[name, *_typed(field)] for name, field in fields.items()]


def _typed(field: field_tables.Field) -> list[Json]:
    """Convert a field of a table to a pair [RabbitMQ's name of its type, value]."""
    if field.kind == "F":
        return ["table", typed_table(field.raw[5:])]
    if field.kind == "A":
        return ["array", [_typed(item) for item in field_tables.decode_items(field.raw[5:])]]
    return [field.type_name, plain_value(field.value)]


def plain_value(value: field_tables.Value) -> Json:
    """Convert an AMQP field value to JSON: bytes to text, decimals to numbers, tables to objects.

    NaN and the infinite numbers, which JSON cannot have, become null.
    """
    if isinstance(value, bytes):
        return name_text(value)
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list):
        return [plain_value(item) for item in value]
    if isinstance(value, dict):
        return {name: plain_value(item) for name, item in value.items()}
    return value


def count_values(value: Json, most: int) -> int:
    """Return how many values a JSON value has, itself included; more than `most` if it has more, however many."""
    count, waiting = 0, [value]
    while waiting and count <= most:
        value = waiting.pop()
        count += 1
        if isinstance(value, dict):
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)
    return count


# -- identifiers, in place of RabbitMQ's ids of Erlang processes


def queue_id(queue: Queue) -> str:
    """Return the identifier of a queue for listings; a queue that is deleted and declared again gets another one."""
    return f"<queue.{int(queue.incarnation)}@{name_text(queue.vhost.name)}>"


def connection_id(connection: ClientSession) -> str:
    """Return the identifier of a connection, by which a request such as `close_connection` names it.

    It is never reused while the broker runs.
    """
    return f"<connection.{int(connection.serial)}>"


def channel_id(channel: Channel) -> str:
    """Return the identifier of a channel for the item `pid` of list_channels."""
    return f"<channel.{int(channel.connection.serial)}.{int(channel.number)}>"
