"""Names and attributes of OpenTelemetry's semantic conventions for messaging (RabbitMQ), as of version 1.44.

https://opentelemetry.io/docs/specs/semconv/messaging/rabbitmq/ and .../messaging-spans/, .../messaging-metrics/.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from opentelemetry.util.types import AttributeValue

from warren.sdk.consume.delivery import Delivery
from warren.sdk.publish.outgoing import Outgoing
from warren.wire.amqp_url import parse_url
from warren.wire.delivery_scanner import is_utf8
from warren.wire.reply_codes import Reply

Attributes = dict[str, AttributeValue]

SYSTEM: Final = "messaging.system"
OPERATION: Final = "messaging.operation.name"
OPERATION_TYPE: Final = "messaging.operation.type"
DESTINATION: Final = "messaging.destination.name"
TEMPLATE: Final = "messaging.destination.template"
ANONYMOUS: Final = "messaging.destination.anonymous"
TEMPORARY: Final = "messaging.destination.temporary"
ROUTING_KEY: Final = "messaging.rabbitmq.destination.routing_key"
DELIVERY_TAG: Final = "messaging.rabbitmq.message.delivery_tag"
BATCH_COUNT: Final = "messaging.batch.message_count"
MESSAGE_ID: Final = "messaging.message.id"
CONVERSATION_ID: Final = "messaging.message.conversation_id"
BODY_SIZE: Final = "messaging.message.body.size"
ENVELOPE_SIZE: Final = "messaging.message.envelope.size"
CLIENT_ID: Final = "messaging.client.id"
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"
PEER_ADDRESS: Final = "network.peer.address"
PEER_PORT: Final = "network.peer.port"
ERROR_TYPE: Final = "error.type"

OPERATION_DURATION: Final = "messaging.client.operation.duration"
PROCESS_DURATION: Final = "messaging.process.duration"
SENT_MESSAGES: Final = "messaging.client.sent.messages"
CONSUMED_MESSAGES: Final = "messaging.client.consumed.messages"
BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)

REPLIES: Final = ("amq.rabbitmq.reply-to", "amq.direct.reply-to", "amq.gen-", "warren.reply.")
"""Prefixes of the names of reply queues and other queues with generated names; these are temporary destinations."""

OPERATION_TYPES: Final = {
    "publish": "send",
    "create": "create",
    "receive": "receive",
    "process": "process",
    "ack": "settle",
    "nack": "settle",
    "reject": "settle",
}


_CONDITIONS: Final = {int(reply): reply.name.lower().replace("_", "-") for reply in Reply}


def encodable(text: str) -> str:
    """Return a text for a span: with U+FFFD for bytes of another client that are not UTF-8.

    An exporter that cannot encode one span loses all that it exports with it.
    """
    return text if is_utf8(text) else text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def producer_destination(exchange: str, routing_key: str) -> str:
    """Return `messaging.destination.name` for a publish: exchange and routing key, joined by a colon.

    An empty part is left out; without both the name is `amq.default`.
    """
    return encodable(":".join(part for part in (exchange, routing_key) if part)) or "amq.default"


def consumer_destination(exchange: str, routing_key: str, queue: str) -> str:
    """Return `messaging.destination.name` for a received message: exchange, routing key and queue, joined by colons.

    Empty parts are left out, and the routing key also if it is the name of the queue.
    """
    parts = (exchange, routing_key if routing_key != queue else "", queue)
    return encodable(":".join(part for part in parts if part))


def span_name(attributes: Mapping[str, AttributeValue]) -> str:
    """Return the name of a span from its attributes: operation and destination, such as `publish orders`.

    A destination template takes precedence over the destination. A temporary destination
    is replaced by the address of the server.
    """
    hidden = attributes.get(ANONYMOUS) or attributes.get(TEMPORARY)
    target = attributes.get(TEMPLATE) or (None if hidden else attributes.get(DESTINATION))
    if target is None and hidden and SERVER_ADDRESS in attributes:
        target = f"{attributes[SERVER_ADDRESS]!s}:{attributes[SERVER_PORT]!s}"
    return str(attributes[OPERATION]) if target is None else f"{attributes[OPERATION]!s} {target!s}"


def operation_attributes(name: str) -> Attributes:
    """Return the attributes of the operation `name`, a key of `OPERATION_TYPES` such as `publish` or `ack`."""
    return {SYSTEM: "rabbitmq", OPERATION: name, OPERATION_TYPE: OPERATION_TYPES[name]}


def outgoing_attributes(name: str, outgoing: Outgoing) -> Attributes:
    """Return the attributes of a message that is published, for the operation `name`, such as `publish`."""
    key = outgoing.routing_key
    attributes = operation_attributes(name)
    attributes[DESTINATION] = producer_destination(outgoing.exchange, key)
    if not outgoing.exchange:
        _note_temporary(attributes, key)
    if key:
        attributes[ROUTING_KEY] = encodable(key)
    _note_identity(attributes, outgoing.properties)
    return attributes


def delivery_attributes(name: str, delivery: Delivery, delivery_tag: int) -> Attributes:
    """Return the attributes of a received message, for the operation `name`, such as `process`; a `delivery_tag` of 0
    is left out."""
    attributes = operation_attributes(name)
    attributes[DESTINATION] = consumer_destination(delivery.exchange, delivery.routing_key, delivery.queue)
    _note_temporary(attributes, delivery.queue)
    if delivery.routing_key:
        attributes[ROUTING_KEY] = encodable(delivery.routing_key)
    if delivery_tag:
        attributes[DELIVERY_TAG] = delivery_tag
    _note_identity(attributes, delivery.properties)
    return attributes


def connection_attributes(url: str, client: str, peer: tuple[str, int] | None) -> Attributes:
    """Return the attributes of a connection: server from the URL, address of the socket's peer, and client name."""
    parts = parse_url(url)
    attributes: Attributes = {SERVER_ADDRESS: parts.host, SERVER_PORT: parts.port, CLIENT_ID: client}
    if peer is not None:
        attributes[PEER_ADDRESS], attributes[PEER_PORT] = peer
    return attributes


def error_type(error: BaseException) -> str:
    """Return the attribute `error.type` of an error.

    For an error with an AMQP reply code that is its name, such
    as `precondition-failed`; for others the name of the class.
    """
    try:
        code = getattr(error, "reply_code", 0)
    except Exception:
        # A property of the application's exception.
        code = 0
    return _CONDITIONS.get(code, type(error).__name__) if isinstance(code, int) else type(error).__name__


def _note_temporary(attributes: Attributes, queue: str) -> None:
    if queue.startswith(REPLIES):
        attributes[ANONYMOUS] = attributes[TEMPORARY] = True


def _note_identity(attributes: Attributes, properties: Mapping[str, object]) -> None:
    for key, name in ((MESSAGE_ID, "message_id"), (CONVERSATION_ID, "correlation_id")):
        if value := properties.get(name):
            attributes[key] = encodable(str(value))
