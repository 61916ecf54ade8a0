"""Messages as JSON, and the reverse: properties, headers and payload."""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Generator
from typing import Any, Final

from warren.broker.http_api.api_error import bad_request
from warren.broker.http_api.table_json import table_in_steps
from warren.broker.management.json_values import name_text, plain_value
from warren.broker.management.request import Json
from warren.broker.model.delivery_headers import delivered_content
from warren.broker.model.message import Message
from warren.broker.model.queue.queue import Queue
from warren.wire import properties as properties_codec
from warren.wire.content import body_payload, header_payload, join_content
from warren.wire.field_tables import TableError

QUOTED: Final = 100
"""Characters of a value that the text of an error quotes."""
BASE64_STEP: Final = 262_144
"""Characters of base64 that are decoded in one step: they take about a millisecond."""
OCTETS: Final = ("delivery_mode", "priority")
SHORT: Final = (
    "content_type",
    "content_encoding",
    "correlation_id",
    "reply_to",
    "expiration",
    "message_id",
    "type",
    "user_id",
    "app_id",
    "cluster_id",
)


def properties_json(header: bytes) -> Json:
    """Return the properties of a message; an empty list if it has none, as RabbitMQ sends it."""
    try:
        found = properties_codec.decode(header)
    except TableError:
        return []
    shown: dict[str, Json] = {}
    for name, value in found.items():
        if isinstance(value, dict):
            shown[name] = {key: plain_value(field.value) for key, field in value.items()}
        else:
            shown[name] = name_text(value) if isinstance(value, bytes) else value
    return shown or []


def message_json(queue: Queue, message: Message, as_base64: bool, truncate: int | None) -> Json:
    """Return a message that was taken from a queue.

    :param as_base64: True to encode each payload; else only those that are not UTF-8.
    :param truncate: bytes of the payload to show; None for all.
    """
    content = delivered_content(queue, message)
    body = body_payload(content)
    shown = body if truncate is None else body[:truncate]
    text, encoding = payload_json(shown, as_base64)
    return {
        "payload_bytes": len(body),
        "redelivered": bool(message.redelivered),
        "exchange": name_text(message.exchange),
        "routing_key": name_text(message.routing_key),
        "message_count": int(queue.ready.count),
        "properties": properties_json(header_payload(content)),
        "payload": text,
        "payload_encoding": encoding,
    }


def payload_json(body: bytes, as_base64: bool) -> tuple[str, str]:
    """Return a payload as text, and its encoding: `string`, or `base64` if it is not UTF-8 or asked for."""
    if not as_base64:
        try:
            return body.decode(), "string"
        except UnicodeDecodeError:
            pass
    return base64.b64encode(body).decode(), "base64"


def payload_in_steps(text: Json, encoding: Json) -> Generator[None, None, bytes]:
    """Return a payload that a request gives, as the value of a generator that yields after each small step.

    :raises ApiError: 400 for an unknown encoding, or a payload that is not of it.
    """
    if not isinstance(text, str):
        raise bad_request("payload must be a text")
    if encoding == "string":
        return text.encode("utf-8", "surrogatepass")
    if encoding != "base64":
        raise bad_request(["unsupported_encoding", str(encoding)[:QUOTED]])
    parts = []
    try:
        # Padding ends the text, but a part of it would be valid with padding, too.
        if text.find("=", 0, -2) >= 0:
            raise ValueError
        for start in range(0, len(text), BASE64_STEP):
            parts.append(base64.b64decode(text[start : start + BASE64_STEP], validate=True))
            yield
    except (ValueError, binascii.Error):
        raise bad_request(["not_base64", text[:QUOTED]]) from None
    return b"".join(parts)


def content_in_steps(given: Json, body: bytes) -> Generator[None, None, bytes]:
    """Encode a message from the properties and the payload of a request; return its content, header and body frames.

    It is the value of a generator that yields after each small step. Properties that AMQP does not have are ignored, as in
    RabbitMQ.

    :raises ApiError: 400 for a value of the wrong type or size.
    """
    if given in ([], None):
        given = {}
    if not isinstance(given, dict):
        raise bad_request("properties must be a JSON object")
    found: dict[str, Any] = {}
    for name, value in given.items():
        if name == "headers":
            _, found[name] = yield from table_in_steps(value)
        elif name in OCTETS or name == "timestamp":
            if not isinstance(value, int) or isinstance(value, bool):
                raise bad_request(["not_int", name])
            found[name] = value
        elif name in SHORT:
            if not isinstance(value, str):
                raise bad_request(["not_a_string", name])
            found[name] = value.encode("utf-8", "surrogateescape")
    try:
        header = properties_codec.encode(found, len(body))
    except (ValueError, struct.error) as error:
        raise bad_request(f"a property is out of range: {error}") from None
    return join_content(1, header, body)
