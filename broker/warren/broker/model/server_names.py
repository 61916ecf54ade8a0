"""Names in AMQP: their length, those that the server generates, and the reserved name of the default exchange."""

from __future__ import annotations

import base64
import os
from typing import Final

from warren.broker.model.argument_checks import argument_fields
from warren.wire.methods import LONGEST_SHORT_STRING
from warren.wire.reply_codes import AmqpError, Reply

LONGEST_NAME: Final = LONGEST_SHORT_STRING
"""Most bytes of a name or a routing key in AMQP, which transfers its length in one byte."""
EVENT_EXCHANGE: Final = b"amq.rabbitmq.event"
"""Name of the internal topic exchange that the events of the broker are published to, if it is enabled."""
TRACE_EXCHANGE: Final = b"amq.rabbitmq.trace"
"""Name of the internal topic exchange that the firehose publishes to."""


def generate_name(prefix: bytes) -> bytes:
    """Return a random name: the prefix, a dash and 128 random bits as URL-safe base64."""
    return prefix + b"-" + base64.urlsafe_b64encode(os.urandom(16)).rstrip(b"=")


def generated_name_prefix(raw: bytes) -> bytes:
    """Return the prefix of a server-generated queue name: the argument x-name-prefix, or `amq.gen`.

    :param raw: the encoded arguments of the queue.declare.
    :raises AmqpError: 406 if the prefix is longer than 64 bytes.
    """
    field = argument_fields(raw).get("x-name-prefix")
    if field is None or field.kind != "S" or not field.value:
        return b"amq.gen"
    prefix = field.raw[5:].translate(None, b"\r\n")
    if len(field.raw) - 5 > 64:
        shown = prefix.decode(errors="replace")
        raise AmqpError(Reply.PRECONDITION_FAILED, f"Queue name prefix '{shown}' exceeds the 64-byte limit")
    return prefix


def refuse_default_exchange(*names: bytes) -> None:
    """Refuse an operation on the default exchange, which routes to each queue by its name and cannot be changed.

    :param names: names of the exchanges that the operation concerns.
    :raises AmqpError: 403 if one of them is empty, which is the name of the default exchange.
    """
    if b"" in names:
        raise AmqpError(Reply.ACCESS_REFUSED, "operation not permitted on the default exchange")
