"""A browsed message as JSON."""

from __future__ import annotations

from typing import Final

from warren.broker.http_api.api_error import bad_request
from warren.broker.http_api.message_json import payload_json, properties_json
from warren.broker.http_api.messages.dead_letter import DeadLetter
from warren.broker.http_api.messages.message_filter import decode_properties
from warren.broker.management.json_values import name_text
from warren.broker.management.request import Json
from warren.broker.model.message import Message
from warren.wire.content import body_payload, header_payload

PAYLOAD: Final = 4096
"""Bytes of each payload that are shown if the request does not say how many."""
MOST_PAYLOAD: Final = 256 * 1024
"""Most bytes of a payload that are shown."""


def shown_message(message: Message, identity: str, state: str, truncate: int) -> dict[str, Json]:
    """Return a message as the API shows it.

    :param identity: its id.
    :param state: `ready`, `unacknowledged`, `delayed`, `retry` or `dead-lettering`; `stored` in a stream.
    :param truncate: bytes of the payload to show.
    """
    body = body_payload(message.content)
    text, encoding = payload_json(_cut(body, truncate), False)
    properties = decode_properties(message)
    letter = None if properties is None else DeadLetter.of(properties)
    return {
        "id": identity,
        "state": state,
        "exchange": name_text(message.exchange),
        "routing_key": name_text(message.routing_key),
        "redelivered": bool(message.redelivered),
        "delivery_count": int(message.delivery_count),
        "persistent": bool(message.persistent),
        "expires_at": int(message.expires) or None,
        "properties": properties_json(header_payload(message.content)) or {},
        "payload_bytes": len(body),
        "payload": text,
        "payload_encoding": encoding,
        "payload_truncated": truncate < len(body),
        "dead_letter": None if letter is None else letter.as_json(),
    }


def _cut(body: bytes, size: int) -> bytes:
    """Return the beginning of a body; not within a character, if it is UTF-8."""
    cut = body[:size]
    if len(cut) < len(body):
        for dropped in range(min(4, len(cut))):
            part = cut[: len(cut) - dropped]
            try:
                part.decode()
            except UnicodeDecodeError:
                continue
            return part
    return cut


def bounded(text: str | None, name: str, default: int, most: int, least: int = 0) -> int:
    """Return a number of a query.

    :raises ApiError: 400 if it is no number from `least` to `most`.
    """
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 10 and least <= int(text) <= most):
        raise bad_request(f"{name} must be a number from {least} to {most}")
    return int(text)
