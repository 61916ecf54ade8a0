"""The names that the server makes, those that it keeps for itself, and how error texts name a thing."""

from __future__ import annotations

import base64
import os

from warren.broker.model.argument_checks import argument_fields
from warren.wire.reply_codes import AmqpError, Reply


def generate_name(prefix: bytes) -> bytes:
    """A name that nothing else has."""
    return prefix + b"-" + base64.urlsafe_b64encode(os.urandom(16)).rstrip(b"=")


def generated_name_prefix(raw: bytes) -> bytes:
    """How a queue's name begins that the server makes: as its argument x-name-prefix says, of at most 64 bytes.

    :raises AmqpError: 406 if it is longer.
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
    """The default exchange is bound to every queue by its name, and to nothing else.

    :raises AmqpError: 403 if one of the names is its own, the empty one.
    """
    if b"" in names:
        raise AmqpError(Reply.ACCESS_REFUSED, "operation not permitted on the default exchange")
