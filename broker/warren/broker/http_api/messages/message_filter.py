"""Filters of messages: by message id, header, property, exchange, routing key, or cause of the dead-lettering."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from warren.broker.http_api.api_error import bad_request
from warren.broker.http_api.message_json import OCTETS, SHORT
from warren.broker.http_api.messages.dead_letter import DeadLetter
from warren.broker.management.json_values import name_text, plain_value
from warren.broker.management.request import Json
from warren.broker.model.message import Message
from warren.wire import properties as properties_codec
from warren.wire.content import header_payload
from warren.wire.field_tables import TableError
from warren.wire.properties import Properties

NAMES: Final = ("message_id", "header", "property", "exchange", "routing_key", "group")
"""Conditions of a filter, as parameters of a query and as members of a JSON object."""
LONGEST: Final = 1024
"""Most characters of a condition."""


class MessageFilter(NamedTuple):
    """Conditions that a message must fulfil, all of them; None is no condition.

    :ivar header: `NAME` of a header that it must have, or `NAME=VALUE` with the value as text.
    :ivar property_value: `NAME=VALUE` of a property, such as `type=order.placed`.
    :ivar group: id of a group of dead letters with one cause.
    """

    message_id: str | None = None
    header: str | None = None
    property_value: str | None = None
    exchange: str | None = None
    routing_key: str | None = None
    group: str | None = None

    @classmethod
    def parse(cls, given: Mapping[str, Json]) -> MessageFilter:
        """Return the filter of a query or of a JSON object.

        :raises ApiError: 400 for a condition that is no text or too long, or a property without a value.
        """
        found: dict[str, str] = {}
        for name in NAMES:
            value = given.get(name)
            if value is None:
                continue
            if not isinstance(value, str) or len(value) > LONGEST:
                raise bad_request(f"{name} must be a text of at most {LONGEST} characters")
            found[name] = value
        if "property" in found and found["property"].partition("=")[0] not in (*SHORT, *OCTETS, "timestamp"):
            raise bad_request(
                "property must be NAME=VALUE with the name of an AMQP property, such as type=order"
            )
        if "property" in found:
            found["property_value"] = found.pop("property")
        return cls(**found)

    def accepts(self, message: Message) -> bool:
        """Return whether a message fulfils all conditions. One whose properties are malformed fulfils none on them."""
        if self.exchange is not None and name_text(message.exchange) != self.exchange:
            return False
        if self.routing_key is not None and name_text(message.routing_key) != self.routing_key:
            return False
        if self.message_id is self.header is self.property_value is self.group is None:
            return True
        properties = decode_properties(message)
        return properties is not None and self._accepts_properties(properties)

    def _accepts_properties(self, properties: Properties) -> bool:
        if self.message_id is not None and _text(properties.get("message_id")) != self.message_id:
            return False
        if self.property_value is not None:
            name, _, value = self.property_value.partition("=")
            if _text(properties.get(name)) != value:
                return False
        if self.header is not None:
            name, equals, value = self.header.partition("=")
            field = properties.headers.get(name)
            if field is None or (equals and _text(plain_value(field.value)) != value):
                return False
        if self.group is not None:
            letter = DeadLetter.of(properties)
            return letter is not None and letter.group == self.group
        return True


def decode_properties(message: Message) -> Properties | None:
    """Return the properties of a message; None if its header table is malformed."""
    try:
        return properties_codec.decode(header_payload(message.content))
    except TableError:
        return None


def _text(value: object) -> str | None:
    if value is None:
        return None
    if isinstance(value, bytes):
        return name_text(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
