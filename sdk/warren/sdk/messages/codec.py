"""Codec: encode messages as AMQP properties and a body, and decode deliveries."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from functools import lru_cache
from struct import Struct
from typing import Any, Unpack

from pydantic import ValidationError
from pydantic_core import to_json, to_jsonable_python

from warren.sdk.consume.delivery import CAUSE, FIRST_PUBLISHED, Delivery, current_delivery
from warren.sdk.errors import ConfigError, UnknownContentEncoding, UnknownContentType
from warren.sdk.messages.content_encodings import BOM, decode_body, is_plain
from warren.sdk.messages.content_types import JSON, is_json, is_msgpack, is_text, media_type, pack
from warren.sdk.messages.message_ids import uuid7
from warren.sdk.messages.message_properties import (
    PropertyOptions,
    check_charset,
    check_encoded,
    check_properties,
    short_string,
)
from warren.sdk.messages.type_codec import CODECS, require_finite, type_codec
from warren.sdk.messages.types import Message
from warren.sdk.messages.validation_errors import format_validation_error
from warren.sdk.publish.outgoing import PERSISTENT, Outgoing, encode_headers
from warren.sdk.telemetry.trace_context import inject
from warren.wire.properties import Property
from warren.wire.properties import encode as encode_properties

UUID_CHARACTERS = 36
FILTER_VALUE = "x-stream-filter-value"
"""Header with the filter value of a message (RabbitMQ 3.13, "Stream Filtering")."""
PROPERTY_TEMPLATES = 1000
"""Largest number of distinct pairs of content type and message type for which encoded properties are cached."""

_ID_MARK = b"\x00" * UUID_CHARACTERS
_CAUSE_MARK = "\x01" * UUID_CHARACTERS
_HEADER = Struct(">HHQ")
_BASIC = 60


class MessageOptions(PropertyOptions, total=False):
    """Options of a publish beside the content: its address, its id, headers, and the AMQP properties (`PropertyOptions`)."""

    exchange: str | None
    """Exchange to publish to, if the class of the message has none or another is wanted."""
    key: str | None
    """Routing key, if the class of the message has none or another is wanted."""
    message_id: str | None
    """Id of the message; by default a new UUID version 7."""
    headers: Mapping[str, Any] | None
    """Headers, which are added to the header table."""


def encode(
    message: object,
    *,
    now: float,
    exchange: str | None = None,
    key: str | None = None,
    message_id: str | None = None,
    headers: Mapping[str, Any] | None = None,
    **options: Unpack[PropertyOptions],
) -> Outgoing:
    """Return the encoded message with its address: that of its class, unless `exchange` and `key` name another one.

    It is mandatory, unless it goes to the exchange of its class, which is an event that needs no listener.

    A `Message` is encoded as its class says (JSON or MessagePack), with its type; bytes stay as they are, `str` becomes
    UTF-8, all other values become JSON. `content_type` of the options chooses another one of these encodings.

    :param now: Unix time in seconds, for the message id, or for the header `warren-first-published` if the id is given.
    :param exchange: exchange to publish to; None for that of the message's class.
    :param key: routing key; None for that of the message's class. Other content needs one of the two.
    :param message_id: by default a new UUID version 7.
    :param headers: added to the header table.
    :param options: AMQP properties: see `PropertyOptions`.
    :raises ConfigError: if there is no address, a name is longer than 255 bytes, a property is out of its range, or the type
        or content type would make the message undecodable.
    """
    chosen = check_properties(options) if options else None
    message_type = None
    content_type = JSON
    mandatory = True
    if isinstance(message, Message):
        message_type = message.wire_type
        content_type = message.wire_content_type
        if chosen:
            content_type = check_encoded(chosen, type(message).__name__) or content_type
            _check_type(type(message), chosen)
        codec = CODECS.get(type(message)) or type_codec(type(message))
        body = codec.write_json(message) if content_type == JSON else codec.write_msgpack(message)
        if exchange is None and key is None and message.wire_key is None:
            raise ConfigError(
                f"{type(message).__name__} has no address: give its class a key or a queue, or publish(..., key=...)"
            )
        if exchange is None:
            exchange, mandatory = message.wire_exchange, message.wire_mandatory
        key = (message.wire_key or "") if key is None else key
    else:
        if isinstance(message, type):
            name = message.__name__
            raise ConfigError(f"a message is published, not its class {name}: write {name}(...)")
        if exchange is None and key is None:
            raise ConfigError(
                f"a {type(message).__name__} has no address: publish(body, exchange=..., key=...)"
            )
        if isinstance(message, bytes):
            body, content_type = message, "application/octet-stream"
        elif isinstance(message, str):
            body, content_type = message.encode(), "text/plain; charset=utf-8"
            if chosen:
                _check_text(chosen)
        else:
            if chosen:
                content_type = check_encoded(chosen, f"a {type(message).__name__}") or JSON
            body = _json(message) if content_type == JSON else _packed(message)
    milli = int(now * 1000)
    table: dict[str, Any] = {}
    inject(table)
    # Only the id of a message that a handler handles now costs more than this look.
    handled = current_delivery()
    cause = None if handled is None else handled.properties.get("message_id")
    if isinstance(message, Message) and message.wire_filter_by is not None:
        value = getattr(message, message.wire_filter_by)
        if value is not None:
            table[FILTER_VALUE] = str(value.value if isinstance(value, Enum) else value)
    if message_id is not None:
        # A generated id contains the time already.
        table[FIRST_PUBLISHED] = milli
    if headers:
        if not isinstance(headers, Mapping):
            raise ConfigError(
                f"headers is a {type(headers).__name__}: it must be a mapping of names to values"
            )
        table.update(headers)
    properties: dict[str, str | int] = {"content_type": content_type, "delivery_mode": PERSISTENT}
    if message_id:
        short_string("message id", message_id)
    identity = properties["message_id"] = message_id or uuid7(milli)
    if message_type is not None:
        properties["type"] = message_type
    header = None
    if chosen:
        properties.update(chosen)
    elif not table:
        if not cause:
            before, after = _property_template(content_type, message_type)
            header = _HEADER.pack(_BASIC, 0, len(body)) + before + identity.encode() + after
        elif isinstance(cause, str) and len(cause) == UUID_CHARACTERS and cause.isascii():
            before, between, after = _caused_property_template(content_type, message_type)
            header = b"".join(
                (
                    _HEADER.pack(_BASIC, 0, len(body)),
                    before,
                    cause.encode(),
                    between,
                    identity.encode(),
                    after,
                )
            )
    if cause:
        table.setdefault(CAUSE, cause)
    return Outgoing(
        short_string("exchange", exchange or ""),
        short_string("routing key", key or ""),
        properties,
        table,
        body,
        mandatory=mandatory,
        header=header,
    )


@lru_cache(PROPERTY_TEMPLATES)
def _property_template(content_type: str, message_type: str | None) -> tuple[bytes, bytes]:
    """Return the encoded properties that every message has, in two parts: the bytes before the message id and those
    after it.
    """
    before, _, after = _encode_template(content_type, message_type, None).partition(_ID_MARK)
    return before, after


@lru_cache(PROPERTY_TEMPLATES)
def _caused_property_template(content_type: str, message_type: str | None) -> tuple[bytes, bytes, bytes]:
    """Return the same for a message with the header `CAUSE`, in three parts: before the id of the cause (a UUID), between
    it and the message id, and after that.
    """
    before, _, rest = _encode_template(content_type, message_type, _CAUSE_MARK).partition(
        _CAUSE_MARK.encode()
    )
    between, _, after = rest.partition(_ID_MARK)
    return before, between, after


def _encode_template(content_type: str, message_type: str | None, cause: str | None) -> bytes:
    properties: dict[str, Property] = {"content_type": content_type.encode(), "delivery_mode": PERSISTENT}
    properties["message_id"] = _ID_MARK
    if cause is not None:
        properties["headers"] = encode_headers([(CAUSE, cause)])
    if message_type is not None:
        properties["type"] = short_string("type", message_type).encode()
    return encode_properties(properties, 0)[_HEADER.size :]


def encode_result(result: object) -> bytes:
    """Return a handler's result as JSON, for `Once` to store. Nobody reads the result of a handler without replies."""
    return _to_json(result)


def decode(kind: Any, delivery: Delivery) -> Any:
    """Return the content as `kind`: a Message class, `bytes`, or any type that pydantic validates from JSON or MessagePack.

    Content that another client compressed (gzip, deflate), or wrote as Base64 or in another character set than UTF-8, is
    decoded first, as `content_encoding` and the `charset` of `content_type` say; `bytes` are returned as they are.

    :raises ValueError: if the content is not valid, or is larger than 16 MiB when it is decompressed; the text contains none
        of the content.
    :raises UnknownContentType: if its content type is neither JSON nor MessagePack (nor text, for `str`).
    :raises UnknownContentEncoding: if its encoding or character set is not known.
    """
    if delivery.text_error is not None:
        raise ValueError(delivery.text_error)
    if kind is bytes:
        return delivery.body
    properties = delivery.properties
    if properties.get("content_type") != JSON or "content_encoding" in properties:
        return _decode_other(kind, delivery)
    codec = CODECS.get(kind) if isinstance(kind, type) else None
    try:
        return (codec or type_codec(kind)).read_json(delivery.body)
    except ValidationError as error:
        if delivery.body.startswith(BOM):
            return _read_json(kind, delivery.body)
        raise ValueError(format_validation_error(error)) from None


def _decode_other(kind: Any, delivery: Delivery) -> Any:
    """Return content that is not JSON without a content encoding, which `decode` returns itself.

    Content with an unknown encoding is read as it is if it can be: some clients write other words than encodings into this
    property.
    """
    body = delivery.body
    content_type = delivery.properties.get("content_type")
    content_encoding = delivery.properties.get("content_encoding")
    unknown: UnknownContentEncoding | None = None
    if not is_plain(content_encoding, content_type):
        try:
            body = decode_body(body, content_encoding, content_type)
        except UnknownContentEncoding as error:
            unknown = error
    media = media_type(content_type)
    try:
        if is_msgpack(media):
            return type_codec(kind).read_msgpack(body)
        if kind is str and is_text(media):
            if unknown is not None:
                raise unknown
            return _read_text(body)
        if is_json(media):
            return _read_json(kind, body)
    except ValidationError as error:
        raise (unknown or ValueError(format_validation_error(error))) from None
    except ValueError:
        if unknown is not None:
            raise unknown from None
        raise
    raise UnknownContentType(f"content of the type {content_type!r} cannot be read")


def _read_json(kind: Any, body: bytes) -> Any:
    try:
        # A byte order mark is no part of JSON, but some clients send it (RFC 8259 section 8.1).
        return type_codec(kind).read_json(body.removeprefix(BOM))
    except ValidationError as error:
        raise ValueError(format_validation_error(error)) from None


def _read_text(body: bytes) -> str:
    try:
        return body.removeprefix(BOM).decode()
    except UnicodeDecodeError as error:
        # The text of the error would contain a byte of the content.
        raise ValueError(f"the text is not valid UTF-8 at byte {error.start}") from None


def _check_type(kind: type[Message], chosen: Mapping[str, str | int]) -> None:
    """Check that readers of a message class accept the `type` that was chosen for one message."""
    name = chosen.get("type")
    if name is None or name == kind.wire_type or name in kind.wire_aliases:
        return
    raise ConfigError(
        f"a {kind.__name__} cannot have the type {name!r}: its type is {kind.wire_type!r}, and its aliases are"
        f" {', '.join(map(repr, kind.wire_aliases)) or 'none'}"
    )


def _check_text(chosen: Mapping[str, str | int]) -> None:
    """Check the content type and encoding that were chosen for a `str`, which is sent as UTF-8."""
    if "content_type" in chosen:
        content_type = str(chosen["content_type"])
        if is_msgpack(media_type(content_type)):
            raise ConfigError(
                f"the content type of a str is {content_type!r}, but it is sent as text: publish bytes"
            )
        check_charset(content_type, "a str")
    check_encoded({name: value for name, value in chosen.items() if name == "content_encoding"}, "a str")


def _json(value: object) -> bytes:
    body = _to_json(value)
    if b"NaN" in body or b"Infinity" in body:
        require_finite(type(value).__name__, body)
    return body


def _to_json(value: object) -> bytes:
    try:
        return to_json(value)
    except ValueError as error:
        raise ConfigError(f"a {type(value).__name__} cannot be written as JSON: {error}") from error


def _packed(value: object) -> bytes:
    try:
        return pack(to_jsonable_python(value))
    except (ValueError, OverflowError) as error:
        raise ConfigError(f"a {type(value).__name__} cannot be written as MessagePack: {error}") from error
