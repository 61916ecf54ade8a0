"""A message ready for the wire, but for the channel it goes over: its address, properties, headers and body."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from warren.wire import field_tables
from warren.wire import properties as wire

PERSISTENT = 2
TRANSIENT = 1


class Outgoing:
    """Its header frame is encoded once, and again only if a property or header is set afterwards.

    :ivar properties: by their AMQP names, but for the headers.
    :ivar deadline: by the loop's clock, when whoever waits for its answer gives up: each write sets its expiration to what
        is left until then.
    :ivar passed: the middlewares have seen it; another attempt goes past them, as what they made of it.
    :ivar headers: values, or fields as they came (`warren.wire.field_tables.Field`).
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
        """:param header: the payload of the header frame, encoded already."""
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
        return str(self.properties.get("message_id", ""))

    def set(self, name: str, value: str | int | None) -> None:
        """Set a property, or with None unset it."""
        self._header = None
        if value is None:
            self.properties.pop(name, None)
        else:
            self.properties[name] = value

    def set_body(self, body: bytes) -> None:
        self._header = None
        self.body = body

    def set_header(self, name: str, value: object) -> None:
        """Set a header, or with None unset it."""
        if value is None and name not in self.headers:
            return
        self._header = None
        if value is None:
            del self.headers[name]
        else:
            self.headers[name] = value

    def header(self) -> bytes:
        """The payload of its header frame.

        :raises ValueError: and other errors of Python's, for a value that the wire cannot carry.
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
    """A header table; what came from the wire as a field goes on with its own type and bytes."""
    return b"".join(field_tables.name_bytes(name) + _encoded(value) for name, value in headers)


def _encoded(value: Any) -> bytes:
    if isinstance(value, field_tables.Field):
        return value.raw
    return field_tables.encode_value(
        field_tables.Timestamp(value.timestamp()) if isinstance(value, datetime) else value
    )
