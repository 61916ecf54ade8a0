"""Values of the model as JSON: names as text, tables with their types, objects by a name that a request may give back."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

from warren.broker.management.request import Json
from warren.wire import tables

if TYPE_CHECKING:
    from warren.broker.model.queue import Queue
    from warren.broker.session.channel import Channel
    from warren.broker.session.connection import Connection


def text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def typed(table: bytes) -> list[Json]:
    """An encoded table as RabbitMQ's command lists it: [name, type, value], tables within it the same."""
    try:
        fields = tables.decode_fields(table)
    except tables.TableError:
        return []
    return [[name, *_typed(field)] for name, field in fields.items()]


def _typed(field: tables.Field) -> list[Json]:
    """Type and value."""
    if field.kind == "F":
        return ["table", typed(field.raw[5:])]
    if field.kind == "A":
        return ["array", [_typed(item) for item in tables.decode_items(field.raw[5:])]]
    return [field.type_name, plain(field.value)]


def plain(value: tables.Value) -> Json:
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
