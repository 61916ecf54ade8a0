"""`Outgoing`: an encoded message before it is written to a channel."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from warren.wire import field_tables
from warren.wire import properties as wire

PERSISTENT = 2
TRANSIENT = 1


class Outgoing:
    """A message to be published: address, properties, headers and body.

    The header frame is encoded once, and again only after a property or header has been set.

    :ivar properties: by their AMQP names, without the headers.
    :ivar headers: values, or fields as they were received (`warren.wire.field_tables.Field`).
    :ivar mandatory: the broker returns the message if no queue takes it.
    :ivar deadline: time of the event loop at which the caller stops waiting for a reply; each write sets
        the expiration to the remaining time. None for no expiration.
    :ivar middlewares_applied: true if the message has passed through the publish
        middlewares; they are skipped when it is published again.
    """

    __slots__ = (
        "_header", "body", "deadline", "exchange", "headers", "mandatory",
        "middlewares_applied", "properties", "routing_key",
    )  # fmt: skip

    def __init__(
        self,
        exchange: str,
        routing_key: str,
        properties: dict[str, str | int],
        headers: dict[str, Any],
        body: bytes,
        *,
        mandatory: bool = True,
        header: bytes | None = None,
    ) -> None:
        """Create a message.

        :param properties: by their AMQP names, without the headers.
        :param mandatory: True to have the broker return the message if no queue takes it.
        :param header: the payload of the content header frame, if it is encoded already.
        """
        self.exchange: str = exchange
        self.routing_key: str = routing_key
        self.properties: dict[str, str | int] = properties
        self.headers: dict[str, Any] = headers
        self.body: bytes = body
        self.mandatory: bool = mandatory
        self._header = header
        self.middlewares_applied: bool = False
        self.deadline: float | None = None

    @property
    def message_id(self) -> str:
        """The message id; empty if there is none."""
        return str(self.properties.get("message_id", ""))

    def set(self, name: str, value: str | int | None) -> None:
        """Set a property, by its AMQP name (`content_type`); a value of None removes it."""
        self._header = None
        if value is None:
            self.properties.pop(name, None)
        else:
            self.properties[name] = value

    def set_body(self, body: bytes) -> None:
        """Replace the body."""
        self._header = None
        self.body = body

    def set_header(self, name: str, value: object) -> None:
        """Set a header; a value of None removes it."""
        if value is None and name not in self.headers:
            return
        self._header = None
        if value is None:
            del self.headers[name]
        else:
            self.headers[name] = value

    def header(self) -> bytes:
        """Return the payload of the content header frame.

        :raises ValueError: for a value that AMQP cannot encode; depending on the value, also other built-in exceptions.
        """
        if self._header is None:
            encoded: dict[str, wire.Property] = {
                name: value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value
                for name, value in self.properties.items()
            }
            if self.headers:
                encoded["headers"] = encode_headers(self.headers.items())
            self._header = wire.encode(encoded, len(self.body))
        return self._header


def encode_headers(headers: Iterable[tuple[str, Any]]) -> bytes:
    """Return an encoded header table; a `Field` of a received message keeps its AMQP type and its bytes.

    :param headers: pairs of name and value.
    """
    return b"".join(field_tables.name_bytes(name) + _encoded(value) for name, value in headers)


def _encoded(value: Any) -> bytes:
    if isinstance(value, field_tables.Field):
        return value.raw
    return field_tables.encode_value(
        field_tables.Timestamp(value.timestamp()) if isinstance(value, datetime) else value
    )
