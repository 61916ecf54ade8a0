"""Copies of dead letters that are published again: without what the last publish left, and edited if a request asks.

The rules are those of `warren dlq replay` and `warren dlq edit`.
"""

from __future__ import annotations

import json
import struct
from typing import Final, NamedTuple

from warren.broker.http_api.api_error import bad_request
from warren.broker.http_api.message_json import OCTETS, payload_in_steps
from warren.broker.http_api.messages.dead_letter import (
    ATTEMPT,
    DEAD_ERROR,
    DEAD_FIRST_TIME,
    DEAD_QUEUE,
    DEAD_REASON,
    DEAD_TIME,
    DEATHS,
    EDITED,
    ORIGIN_EXCHANGE,
    ORIGIN_KEY,
    REPLAYED,
    DeadLetter,
)
from warren.broker.http_api.table_json import table_in_steps
from warren.broker.management.request import Json
from warren.broker.management.time_slices import run_at_once
from warren.wire import field_tables
from warren.wire import properties as properties_codec
from warren.wire.content import join_content
from warren.wire.field_tables import Field
from warren.wire.properties import Properties, Property

DROPPED_HEADERS: Final = frozenset(
    {
        "CC",
        "BCC",
        "x-death",
        "x-delivery-count",
        *(
            f"x-{which}-death-{part}"
            for which in ("first", "last")
            for part in ("exchange", "queue", "reason")
        ),
        DEAD_REASON,
        DEAD_ERROR,
        DEAD_QUEUE,
        DEAD_TIME,
        ATTEMPT,
    }
)
"""Headers that a replayed message does not keep: those of its deaths, and those that would route it to further queues."""
EDITABLE: Final = frozenset(
    {
        "app_id",
        "content_encoding",
        "content_type",
        "correlation_id",
        "priority",
        "reply_to",
        "timestamp",
        "type",
    }
)
"""Properties that an edit may change. The message id stays, so that consumers recognise the message."""
PERSISTENT: Final = 2


class LetterEdit(NamedTuple):
    """Changes of a dead letter before its replay.

    :ivar body: the new body; None keeps the old one.
    :ivar headers: headers to set, by name; None removes the header.
    :ivar properties: properties to set; None removes the property.
    """

    body: bytes | None
    headers: dict[str, Field | None]
    properties: dict[str, bytes | int | None]

    @classmethod
    def parse(cls, given: Json) -> LetterEdit:
        """Return the edit that a request asks for.

        :raises ApiError: 400 if it is malformed, or changes what cannot be changed.
        """
        if not isinstance(given, dict) or not given.keys() <= {
            "payload",
            "payload_encoding",
            "headers",
            "properties",
        }:
            raise bad_request(
                "edit must be a JSON object with payload, payload_encoding, headers or properties"
            )
        headers, properties = given.get("headers", {}), given.get("properties", {})
        if not isinstance(headers, dict) or not isinstance(properties, dict):
            raise bad_request("headers and properties of an edit must be JSON objects")
        for name in headers:
            if name.startswith(("warren-", "x-")) or name in ("CC", "BCC"):
                raise bad_request(f"the header {name} cannot be edited: the SDK or the broker sets it")
        for name, value in properties.items():
            if name not in EDITABLE:
                raise bad_request(
                    f"the property {name} cannot be edited; these can: {', '.join(sorted(EDITABLE))}"
                )
            wanted = int if name in OCTETS or name == "timestamp" else str
            if value is not None and (not isinstance(value, wanted) or isinstance(value, bool)):
                raise bad_request(f"the property {name} must be {'a number' if wanted is int else 'a text'}")
        body = None
        if "payload" in given:
            encoding = given.get("payload_encoding", "string")
            body = run_at_once(payload_in_steps(given["payload"], encoding))
        set_headers = {name: value for name, value in headers.items() if value is not None}
        fields = run_at_once(table_in_steps(set_headers)).fields
        return cls(
            body,
            {name: fields.get(name) for name in headers},
            {
                name: value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value
                for name, value in properties.items()
            },
        )

    def check(self, properties: Properties) -> None:
        """Check that a message can be edited in this way.

        :param properties: its properties, edited.
        :raises ApiError: 400 for a new body of an encoded or signed message, or one that is not of its content type.
        """
        if self.body is None:
            return
        if properties.data("content_encoding"):
            raise bad_request("the body cannot be edited: it is encoded, as content_encoding says")
        if "warren-signature" in properties.headers:
            raise bad_request("the body cannot be edited: the message is signed")
        kind = (properties.data("content_type") or b"").decode(errors="replace")
        kind = kind.partition(";")[0].strip().lower()
        if kind == "application/json" or kind.endswith("+json"):
            try:
                json.loads(self.body)
            except (ValueError, RecursionError):
                raise bad_request(f"the new body is not JSON, as its content type {kind} says") from None


def replayed_content(
    properties: Properties, body: bytes, letter: DeadLetter, edit: LetterEdit | None
) -> tuple[bytes, Properties]:
    """Return the encoded content of a dead letter that is published again, and its properties.

    :raises ApiError: 400 if the edit is not possible.
    """
    changed: dict[str, Property | None] = {
        **properties,
        "delivery_mode": PERSISTENT,
        "expiration": None,
        "user_id": None,
    }
    headers: dict[str, Field | None] = {
        name: field for name, field in properties.headers.items() if name not in DROPPED_HEADERS
    }
    headers[REPLAYED] = field_tables.field_of(_count(properties, REPLAYED) + 1)
    headers[DEATHS] = field_tables.field_of(letter.deaths) if letter.deaths else None
    headers[DEAD_FIRST_TIME] = None if letter.first is None else field_tables.field_of(letter.first)
    headers[ORIGIN_EXCHANGE] = field_tables.field_of(letter.exchange)
    headers[ORIGIN_KEY] = field_tables.field_of(letter.keys[0])
    if edit is not None:
        changed |= edit.properties
        headers |= edit.headers
        headers[EDITED] = field_tables.field_of(_count(properties, EDITED) + 1)
        body = body if edit.body is None else edit.body
    changed["headers"] = {name: field for name, field in headers.items() if field is not None}
    try:
        header = properties_codec.encode(
            {name: value for name, value in changed.items() if value is not None}, len(body)
        )
    except (ValueError, struct.error) as error:
        raise bad_request(f"a property is out of range: {error}") from None
    found = properties_codec.decode(header)
    if edit is not None:
        edit.check(found)
    return join_content(1, header, body), found


def _count(properties: Properties, name: str) -> int:
    field = properties.headers.get(name)
    return int(field.value) if field is not None and isinstance(field.value, int) else 0
