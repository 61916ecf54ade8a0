"""`x-delayed-message`: an exchange that holds a message back for as long as its header x-delay says.

As RabbitMQ's plugin has it (https://github.com/rabbitmq/rabbitmq-delayed-message-exchange), and further: what it holds is
stored like any message of a durable queue, is listed, and may wait for any time. `mandatory` is judged when it is published.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from warren.broker.model.exchange.headers import stored_keys
from warren.broker.model.message import Message
from warren.wire import field_tables
from warren.wire.content import body_payload, header_payload, join_content
from warren.wire.properties import decode, encode
from warren.wire.reply_codes import AmqpError, Reply

if TYPE_CHECKING:
    from warren.broker.model.exchange.exchange import Exchange
    from warren.broker.model.queue.queue import Queue

logger = logging.getLogger(__name__)

DELAY_HEADER: Final = "x-delay"
MAX_DELAY_MS: Final = 2**53
"""Milliseconds; longer ones are as long as that."""


def delayed_type(fields: dict[str, field_tables.Field]) -> bytes:
    """How a delayed exchange routes when the time has come: its argument x-delayed-type.

    :raises AmqpError: 406 if it is missing or no string.
    """
    field = fields.get("x-delayed-type")
    if field is None or field.kind != "S":
        raise AmqpError(
            Reply.PRECONDITION_FAILED, "Invalid argument, 'x-delayed-type' must be an existing exchange type"
        )
    return field.raw[5:]


def delay_ms(headers: dict[str, field_tables.Field]) -> int:
    """For how many milliseconds a message with these headers is held back; 0 if it is not.

    As in the plugin: integers, fractions cut off, and digits in a string; all else, and what is below 0, is no delay.
    """
    field = headers.get(DELAY_HEADER)
    if field is None:
        return 0
    value = field.value
    if isinstance(value, str):
        digits = value[1:] if value[:1] in ("+", "-") else value
        number = int(value) if digits.isascii() and digits.isdigit() and len(digits) < 20 else 0
    elif field.is_integer or field.kind in "fdD":
        number = to_integer(value)
    else:
        number = 0
    return max(0, min(number, MAX_DELAY_MS))


def to_integer(value: object) -> int:
    try:
        return int(value)  # type: ignore[call-overload, no-any-return]
    except (ValueError, OverflowError):
        return 0  # not a number, or endless


def message_delay_ms(message: Message) -> int:
    return delay_ms(decode(header_payload(message.content), "x-death").headers)


def release_delayed_message(queue: Queue, exchange: Exchange, message: Message) -> None:
    """The time of a message has come: route it as if it had been published now. What nobody takes is dropped, and counted.

    Its header x-delay is negative then: nothing holds it back again, and a consumer can tell that it was.
    """
    vhost = queue.vhost
    properties = decode(
        header_payload(message.content), None if vhost.routes_by_message(exchange) else "x-death"
    )
    headers = dict(properties.headers)
    keys = [message.routing_key, *stored_keys(headers, "CC"), *stored_keys(headers, "BCC")]
    headers[DELAY_HEADER] = field_tables.field_of(-delay_ms(headers))
    properties["headers"] = headers
    body = body_payload(message.content)
    content = join_content(message.channel, encode(properties, len(body)), body)
    copy = Message(message.exchange, message.routing_key, content, len(body), message.channel)
    copy.priority = message.priority
    copy.persistent = message.persistent
    copy.has_bcc = message.has_bcc
    copy.dead_lettered = message.dead_lettered
    expiration = properties.data("expiration")
    if expiration is not None:
        copy.ttl = int(expiration)
    targets = vhost.find_queues(exchange, keys, headers, copy)
    if not targets:
        exchange.unroutable_dropped += 1
        if message.stored:
            queue.remove_from_log(message)
    elif vhost.transfer(queue, message, targets, copy):
        logger.info(
            "event=delayed_message_refused exchange=%r why='a full queue refused its copy'",
            exchange.name.decode(errors="replace"),
        )
