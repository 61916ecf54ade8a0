"""`x-delayed-message`: an exchange that delays each message by the milliseconds in its header x-delay.

It works as RabbitMQ's plugin (https://github.com/rabbitmq/rabbitmq-delayed-message-exchange), with some additions. The
messages wait in an internal queue, which is durable if the exchange is and which listings of queues show. A delay may
be of any length. A mandatory message that no queue would get is returned when it is published, not after its delay.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from warren.broker.model.exchange.headers import stored_keys
from warren.broker.model.message import PERSISTENT, Message
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
"""Longest delay in milliseconds. A longer one is cut to this."""


def delayed_type(fields: dict[str, field_tables.Field]) -> bytes:
    """Return the type by which a delayed exchange routes messages after their delay: the argument x-delayed-type.

    :param fields: the exchange's decoded arguments, by name.
    :raises AmqpError: 406 if it is missing or no string.
    """
    field = fields.get("x-delayed-type")
    if field is None or field.kind != "S":
        raise AmqpError(
            Reply.PRECONDITION_FAILED, "Invalid argument, 'x-delayed-type' must be an existing exchange type"
        )
    return field.raw[5:]


def delay_ms(headers: dict[str, field_tables.Field]) -> int:
    """Return the milliseconds in the header x-delay; 0 if the message is not delayed.

    As in the plugin, the header may be an integer, a float, whose fraction is cut off, or a string of digits. Other
    values and negative numbers are no delay.

    :param headers: the message's decoded headers, by name.
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
    """Return the integer part of an integer, float or decimal; 0 for NaN and infinity."""
    try:
        return int(value)  # type: ignore[call-overload, no-any-return]
    except (ValueError, OverflowError):
        return 0


def message_delay_ms(message: Message) -> int:
    """Return the milliseconds in a message's header x-delay; 0 if it is not delayed."""
    return delay_ms(decode(header_payload(message.content), "x-death").headers)


def release_delayed_message(queue: Queue, exchange: Exchange, message: Message) -> None:
    """Route a message whose delay has ended as if it were published now. An unroutable one is dropped and counted.

    Its header x-delay is negated, so that it is not delayed again and a consumer can see that it was delayed.

    :param queue: the internal queue in which the message has waited.
    :param exchange: the delayed exchange.
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
    # The internal queue stores every message, the queues that it enters now may not.
    copy.persistent = properties.get("delivery_mode") == PERSISTENT
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
            "event=delayed_message.rejected exchange=%r",
            exchange.name.decode(errors="replace"),
        )
