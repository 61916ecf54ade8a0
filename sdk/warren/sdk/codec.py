"""The wire form: a message of the SDK as AMQP properties and a body, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Any

from pamqp import commands as spec
from pydantic import BaseModel, TypeAdapter
from pydantic_core import to_json

from warren.sdk import telemetry
from warren.sdk.delivery import ATTEMPT, FIRST_PUBLISHED, Delivery
from warren.sdk.errors import ConfigError
from warren.sdk.identity import uuid7
from warren.sdk.messages import Message
from warren.sdk.topology import milliseconds

PERSISTENT = 2
SHORT_STRING_BYTES = 255


@dataclass(slots=True)
class Outgoing:
    """A message ready for the wire, but for the channel it goes over."""

    exchange: str
    routing_key: str
    properties: spec.Basic.Properties
    body: bytes
    mandatory: bool = True


def encode(
    message: object,
    *,
    now: float,
    exchange: str | None = None,
    key: str | None = None,
    message_id: str | None = None,
    headers: Mapping[str, Any] | None = None,
    expiration: timedelta | None = None,
    reply_to: str | None = None,
    correlation_id: str | None = None,
) -> Outgoing:
    """The message at its own address, or at the one that is given.

    A `Message` becomes JSON with its type; bytes go as they are, text as UTF-8, everything else as JSON.

    :param now: Unix time in seconds; becomes `warren-first-published` and the time in the message id.
    :raises ConfigError: if there is no address, or it is longer than the wire allows.
    """
    message_type = None
    content_type = "application/json"
    if isinstance(message, Message):
        message_type = message.wire_type
        body = message.model_dump_json(by_alias=True).encode()
        if exchange is None and key is None and message.wire_key is None:
            raise ConfigError(
                f"{type(message).__name__} has no address: give its class a key or a queue, or publish(..., key=...)"
            )
        exchange = message.wire_exchange if exchange is None else exchange
        key = (message.wire_key or "") if key is None else key
    else:
        if exchange is None and key is None:
            raise ConfigError(
                f"a {type(message).__name__} has no address: publish(body, exchange=..., key=...)"
            )
        if isinstance(message, bytes):
            body, content_type = message, "application/octet-stream"
        elif isinstance(message, str):
            body, content_type = message.encode(), "text/plain; charset=utf-8"
        else:
            body = _json(message)
    milli = int(now * 1000)
    table: dict[str, Any] = {ATTEMPT: 1, FIRST_PUBLISHED: milli}
    telemetry.inject(table)
    if headers:
        table.update(headers)
    return Outgoing(
        exchange=short("exchange", exchange or ""),
        routing_key=short("routing key", key or ""),
        properties=spec.Basic.Properties(
            content_type=content_type,
            headers=table,
            delivery_mode=PERSISTENT,
            correlation_id=correlation_id,
            reply_to=reply_to,
            expiration=None if expiration is None else str(max(0, milliseconds(expiration) or 0)),
            message_id=message_id or uuid7(milli),
            message_type=message_type,
        ),
        body=body,
    )


def encode_result(adapter: TypeAdapter[Any] | None, result: object) -> bytes:
    """A handler's result as JSON, checked against the reply type where there is one.

    :raises pydantic.ValidationError: if the result is not of the reply's type.
    """
    if adapter is None:
        return _json(result)
    return adapter.dump_json(adapter.validate_python(result), by_alias=True)


def decode(kind: Any, delivery: Delivery) -> Any:
    """The content as `kind`: a Message, `bytes`, or any type that pydantic reads from JSON.

    :raises ValueError: if it cannot be read as that.
    """
    if kind is bytes:
        return delivery.body
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return kind.model_validate_json(delivery.body)
    if kind is str and not (delivery.properties.get("content_type") or "").startswith("application/json"):
        return delivery.body.decode()
    return adapter_of(kind).validate_json(delivery.body)


@cache
def adapter_of(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def set_properties(properties: spec.Basic.Properties) -> dict[str, Any]:
    """The properties that are set, but for the headers, by their AMQP names."""
    found: dict[str, Any] = {}
    for name in _PROPERTIES:
        value = getattr(properties, name)
        if value is not None and value != "":
            found["type" if name == "message_type" else name] = value
    return found


def short(what: str, text: str) -> str:
    """A text that fits a short string (AMQP 0-9-1 section 4.2.5.3)."""
    if len(text.encode()) > SHORT_STRING_BYTES:
        raise ConfigError(f"the {what} is longer than {SHORT_STRING_BYTES} bytes: {text[:40]}...")
    return text


def _json(value: object) -> bytes:
    try:
        return to_json(value)
    except ValueError as error:
        raise ConfigError(f"a {type(value).__name__} cannot be written as JSON: {error}") from error


_PROPERTIES = tuple(
    name for name in spec.Basic.Properties.attributes() if name not in ("headers", "cluster_id")
)
