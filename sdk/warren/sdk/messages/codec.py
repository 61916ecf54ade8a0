"""The wire form: a message of the SDK as AMQP properties and a body, and back."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from functools import cache, lru_cache
from struct import Struct
from typing import Any, TypedDict

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import to_json

from warren.sdk.consume.delivery import FIRST_PUBLISHED, Delivery
from warren.sdk.durations import milliseconds
from warren.sdk.errors import ConfigError, UnknownContentType
from warren.sdk.messages.content_types import JSON, is_json, is_msgpack, is_text, media_type, pack, unpack
from warren.sdk.messages.message_ids import uuid7
from warren.sdk.messages.types import Message
from warren.sdk.messages.validation_errors import format_validation_error
from warren.sdk.publish.outgoing import PERSISTENT, Outgoing
from warren.sdk.telemetry.trace_context import inject
from warren.wire.properties import Property
from warren.wire.properties import encode as encode_properties

SHORT_STRING_BYTES = 255
UUID_CHARACTERS = 36
FORMS = 1000
"""Content type and message type pairs whose properties are kept encoded."""

_HEADER = Struct(">HHQ")
_BASIC = 60


class MessageOptions(TypedDict, total=False):
    """What may be said of a message beside its content.

    `exchange`, `key`: its address, where it has none of its own or another one. `message_id`: made, unless it is given.
    `headers`: added to the header table. `expiration`: the message leaves its queue when it has waited so long.
    `priority`: 0 to 255, for a queue with `max_priority`; what is above its maximum is its maximum.
    """

    exchange: str | None
    key: str | None
    message_id: str | None
    headers: Mapping[str, Any] | None
    expiration: timedelta | None
    priority: int | None


def encode(
    message: object,
    *,
    now: float,
    exchange: str | None = None,
    key: str | None = None,
    message_id: str | None = None,
    headers: Mapping[str, Any] | None = None,
    expiration: timedelta | None = None,
    priority: int | None = None,
) -> Outgoing:
    """The message at its own address, or at the one that is given.

    A `Message` becomes JSON with its type; bytes go as they are, text as UTF-8, everything else as JSON.

    :param now: Unix time in seconds; becomes the time in the message id, or `warren-first-published` beside a given id.
    :raises ConfigError: if there is no address, or it is longer than the wire allows; if the priority is out of range.
    """
    message_type = None
    content_type = JSON
    if isinstance(message, Message):
        message_type = message.wire_type
        content_type = message.wire_content_type
        if content_type == JSON:
            body = message.__pydantic_serializer__.to_json(message, by_alias=True)
        else:
            body = pack(message.__pydantic_serializer__.to_python(message, mode="json", by_alias=True))
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
    table: dict[str, Any] = {}
    inject(table)
    if message_id is not None:
        # An id that is made here tells the time by itself.
        table[FIRST_PUBLISHED] = milli
    if headers:
        table.update(headers)
    properties: dict[str, str | int] = {"content_type": content_type, "delivery_mode": PERSISTENT}
    if expiration is not None:
        properties["expiration"] = str(max(0, milliseconds(expiration) or 0))
    if priority is not None:
        if not 0 <= priority <= 255:
            raise ConfigError(f"the priority is {priority}: it is from 0 to 255")
        properties["priority"] = priority
    identity = properties["message_id"] = message_id or uuid7(milli)
    if message_type is not None:
        properties["type"] = message_type
    header = None
    if not table and expiration is None and priority is None:
        before, after = _form(content_type, message_type)
        header = _HEADER.pack(_BASIC, 0, len(body)) + before + identity.encode() + after
    return Outgoing(
        short("exchange", exchange or ""),
        short("routing key", key or ""),
        properties,
        table,
        body,
        header=header,
    )


@lru_cache(FORMS)
def _form(content_type: str, message_type: str | None) -> tuple[bytes, bytes]:
    """What precedes and what follows the id in the properties of a plain message."""
    properties: dict[str, Property] = {"content_type": content_type.encode(), "delivery_mode": PERSISTENT}
    properties["message_id"] = mark = b"\x00" * UUID_CHARACTERS
    if message_type is not None:
        properties["type"] = short("type", message_type).encode()
    before, _, after = encode_properties(properties, 0)[_HEADER.size :].partition(mark)
    return before, after


def encode_result(result: object) -> bytes:
    """What a handler returned, as JSON, for `Once` to keep."""
    return _json(result)


def decode(kind: Any, delivery: Delivery) -> Any:
    """The content as `kind`: a Message, `bytes`, or any type that pydantic reads, from JSON or MessagePack.

    :raises ValueError: if it cannot be read as that, in words that show nothing of it; `UnknownContentType` if its type
        says that it is something else.
    """
    if delivery.text_error is not None:
        raise ValueError(delivery.text_error)
    if kind is bytes:
        return delivery.body
    content_type = delivery.properties.get("content_type")
    if content_type != JSON:
        media = media_type(content_type)
        if is_msgpack(media):
            value = unpack(delivery.body)
            try:
                return adapter_of(kind).validate_python(value)
            except ValidationError as error:
                raise ValueError(format_validation_error(error)) from None
        if kind is str and is_text(media):
            return delivery.body.decode()
        if not is_json(media):
            raise UnknownContentType(f"content of the type {content_type!r} cannot be read")
    try:
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind.__pydantic_validator__.validate_json(delivery.body)
        return adapter_of(kind).validate_json(delivery.body)
    except ValidationError as error:
        raise ValueError(format_validation_error(error)) from None


@cache
def adapter_of(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def short(what: str, text: str) -> str:
    """A text that fits a short string (AMQP 0-9-1 section 4.2.5.3)."""
    try:
        size = len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError:
        raise ConfigError(f"the {what} is no text that UTF-8 can carry: {text[:40]!r}") from None
    if size > SHORT_STRING_BYTES:
        raise ConfigError(f"the {what} is longer than {SHORT_STRING_BYTES} bytes: {text[:40]}...")
    return text


def _json(value: object) -> bytes:
    try:
        return to_json(value)
    except ValueError as error:
        raise ConfigError(f"a {type(value).__name__} cannot be written as JSON: {error}") from error
