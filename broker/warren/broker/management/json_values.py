"""Values of the model as JSON: names as text, tables with their types, objects by a name that a request may give back."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

from warren.broker.management.request import Json
from warren.wire import field_tables

if TYPE_CHECKING:
    from warren.broker.channel.channel import Channel
    from warren.broker.connection.connection import Connection
    from warren.broker.model.queue.queue import Queue


def text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def typed(table: bytes) -> list[Json]:
    """An encoded table as RabbitMQ's command lists it: [name, type, value], tables within it the same."""
    try:
        fields = field_tables.decode_fields(table)
    except field_tables.TableError:
        return []
    return [[name, *_typed(field)] for name, field in fields.items()]


def _typed(field: field_tables.Field) -> list[Json]:
    """Type and value."""
    if field.kind == "F":
        return ["table", typed(field.raw[5:])]
    if field.kind == "A":
        return ["array", [_typed(item) for item in field_tables.decode_items(field.raw[5:])]]
    return [field.type_name, plain(field.value)]


def plain(value: field_tables.Value) -> Json:
    """A table's value without its type."""
    if isinstance(value, bytes):
        return text(value)
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    return value


# -- what stands where RabbitMQ has the ids of Erlang processes


def queue_id(queue: Queue) -> str:
    """Names a queue: another one of the same name, made later, has another."""
    return f"<queue.{int(queue.incarnation)}@{text(queue.vhost.name)}>"


def connection_id(connection: Connection) -> str:
    """Names a connection for `close_connection`; never used again while the broker runs."""
    return f"<connection.{int(connection.conversation.serial)}>"


def channel_id(channel: Channel) -> str:
    return f"<channel.{int(channel.connection.conversation.serial)}.{int(channel.number)}>"
