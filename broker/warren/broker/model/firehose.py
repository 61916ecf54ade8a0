"""Firehose: copies of the messages that are published and delivered, for the exchange `amq.rabbitmq.trace`.

Routing keys and headers are RabbitMQ's (https://www.rabbitmq.com/docs/firehose).
"""

from __future__ import annotations

import asyncio
import logging
import struct
from typing import TYPE_CHECKING, Final

from warren.broker.model.exchange.headers import cc_and_bcc_keys
from warren.broker.model.message import Message
from warren.broker.model.server_names import LONGEST_NAME, TRACE_EXCHANGE
from warren.wire import properties
from warren.wire.content import body_payload, header_payload, join_content
from warren.wire.field_tables import Field, Value, field_of, join, long_field

if TYPE_CHECKING:
    from collections.abc import Iterable

    from warren.broker.model.queue.queue import Queue
    from warren.broker.model.vhost.vhost import VirtualHost

logger = logging.getLogger(__name__)

_TABLE: Final = struct.Struct(">cI")
MAX_PENDING: Final = 10_000
"""Copies that wait for the next turn of the event loop at most; further ones of the same turn are dropped."""
MAX_PENDING_BYTES: Final = 64 * 1024 * 1024
"""Bytes of their contents at most."""


class Firehose:
    """Publisher of the trace messages of one virtual host. It exists while tracing is on.

    A trace message is published in the next turn of the event loop, because its own deliveries must not come in between
    the parts of the delivery that it traces. Nothing that passes through the trace exchange is traced.

    :param node: name of the node, for the header `node`.
    """

    def __init__(self, vhost: VirtualHost, node: str, loop: asyncio.AbstractEventLoop) -> None:
        self._vhost = vhost
        self._node = node
        self._loop = loop
        self._pending: list[tuple[bytes, bytes, dict[str, Field]]] = []
        self._pending_bytes = 0
        self.dropped = 0
        """Copies that were dropped because too many were pending."""

    def published(
        self, message: Message, queues: Iterable[Queue], connection: str, channel: int, user: str
    ) -> None:
        """Trace a publish, with the routing key `publish.<exchange>`.

        :param queues: queues that the message is routed to.
        :param connection: name of the publisher's connection.
        :param user: name of the publisher's user.
        """
        internal = self._vhost.internal_queues
        self._trace(
            b"publish." + message.exchange,
            message.exchange,
            message.routing_key,
            message.content,
            {
                "vhost": self._vhost.name.decode(errors="surrogateescape"),
                "connection": connection,
                "channel": channel,
                "user": user,
            },
            [queue.name for queue in queues if queue.name not in internal],
        )

    def delivered(
        self, message: Message, content: bytes, queue: bytes, connection: str, channel: int, user: str
    ) -> None:
        """Trace a delivery, with the routing key `deliver.<queue>`.

        :param content: the content that the client gets.
        :param queue: name of the queue that the message comes from.
        :param connection: name of the consumer's connection.
        :param user: name of the consumer's user.
        """
        self._trace(
            b"deliver." + queue,
            message.exchange,
            message.routing_key,
            content,
            {
                "redelivered": int(message.redelivered),
                "vhost": self._vhost.name.decode(errors="surrogateescape"),
                "connection": connection,
                "channel": channel,
                "user": user,
            },
        )

    def _trace(
        self,
        key: bytes,
        exchange: bytes,
        routing_key: bytes,
        content: bytes,
        circumstances: dict[str, Value],
        queues: list[bytes] | None = None,
    ) -> None:
        if exchange == TRACE_EXCHANGE:
            return
        key = cut_key(key)
        trace = self._vhost.exchanges[TRACE_EXCHANGE]
        if not trace.bindings or not self._vhost.find_queues(trace, [key], {}, None):
            return
        if len(self._pending) >= MAX_PENDING or self._pending_bytes + len(content) > MAX_PENDING_BYTES:
            if not self.dropped:
                logger.warning("event=firehose.messages_dropped vhost=%r", _text(self._vhost.name))
            self.dropped += 1
            return
        found = properties.decode(header_payload(content))
        keys = [routing_key, *cc_and_bcc_keys(found.headers)]
        fields = {
            "exchange_name": field_of(_text(exchange)),
            "routing_keys": field_of([_text(each) for each in keys]),
            "properties": _table_field({name: _property_field(value) for name, value in found.items()}),
            "node": field_of(self._node),
            **{name: field_of(value) for name, value in circumstances.items()},
        }
        if queues is not None:
            # RabbitMQ's default exchange routes to any name, whether or not there is a queue.
            routed = queues if exchange else keys
            fields["routed_queues"] = field_of([_text(each) for each in routed])
        if not self._pending:
            self._loop.call_soon(self._publish_pending)
        self._pending.append((key, content, fields))
        self._pending_bytes += len(content)

    def _publish_pending(self) -> None:
        pending, self._pending, self._pending_bytes = self._pending, [], 0
        vhost = self._vhost
        if vhost.firehose is not self or TRACE_EXCHANGE not in vhost.exchanges:
            return
        exchange = vhost.exchanges[TRACE_EXCHANGE]
        for key, content, fields in pending:
            body = body_payload(content)
            header = properties.encode(properties.Properties(headers=fields), len(body))
            message = Message(TRACE_EXCHANGE, key, join_content(1, header, body), len(body), 1)
            queues = vhost.find_queues(exchange, [key], fields, message)
            exchange.published_in += 1
            exchange.published_out += len(queues)
            if queues:
                vhost.deliver(queues, message)


def cut_key(key: bytes) -> bytes:
    """Return the longest beginning of a routing key that AMQP can transfer, without a part of a character at its end."""
    if len(key) <= LONGEST_NAME:
        return key
    end = LONGEST_NAME
    # A byte 10xxxxxx continues a character of UTF-8, which has four bytes at most.
    while end > LONGEST_NAME - 4 and key[end] & 0xC0 == 0x80:
        end -= 1
    return key[:end]


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def _property_field(value: properties.Property) -> Field:
    """Return a property as a field of the header `properties`; headers keep their types."""
    if isinstance(value, bytes):
        return field_of(_text(value))
    if isinstance(value, dict):
        return _table_field(value)
    if value >= 2**63:
        # A timestamp of 64 bits, in a type with a sign, as in RabbitMQ.
        return long_field(value - 2**64)
    return field_of(value)


def _table_field(fields: dict[str, Field]) -> Field:
    table = join(fields)
    return Field(
        "F", {name: each.value for name, each in fields.items()}, _TABLE.pack(b"F", len(table)) + table
    )
