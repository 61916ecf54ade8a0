"""Delivery: one message as it arrived, for handlers that want more than its content."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, Token
from datetime import UTC, datetime
from typing import Any

from warren.sdk.messages.message_ids import milliseconds_of
from warren.wire import field_tables
from warren.wire.delivery_scanner import decode_content_header, decode_deliver, is_utf8

ATTEMPT = "warren-attempt"
FIRST_PUBLISHED = "warren-first-published"
REPUBLISHED = "warren-republished"
RETURN_TOKEN = "warren-token"
"""Set only while another publish with the same message id is in flight on the channel; tells their returns apart."""


class Delivery:
    """One delivery. A handler gets it through a parameter that is annotated with `Delivery`.

    :ivar queue: the queue it came from.
    :ivar redelivered: the broker may have delivered it before.
    :ivar properties: the AMQP properties that were set, by their AMQP names, but for the headers; `timestamp` is in
        Unix seconds.
    :ivar text_error: what of it is no AMQP text, or None; such a message is dead-lettered, not handled.
    """

    __slots__ = (
        "_headers",
        "_received",
        "_table",
        "body",
        "exchange",
        "properties",
        "queue",
        "redelivered",
        "routing_key",
        "text_error",
    )

    def __init__(
        self,
        body: bytes,
        exchange: str,
        routing_key: str,
        queue: str,
        redelivered: bool,
        headers: Mapping[str, Any] | None,
        properties: Mapping[str, Any],
        *,
        table: bytes = b"",
    ) -> None:
        self.body: bytes = body
        self.exchange: str = exchange
        self.routing_key: str = routing_key
        self.queue: str = queue
        self.redelivered: bool = redelivered
        self.properties: Mapping[str, Any] = properties
        self.text_error: str | None = None
        self._headers = headers
        self._table = table
        self._received: Delivery | None = None

    @classmethod
    def from_frames(cls, method: bytes, header: bytes, body: bytes, queue: str) -> tuple[int, Delivery]:
        """A delivery from the payloads of its frames, and its delivery tag.

        :raises StreamError: if the frames end early.
        """
        tag, redelivered, exchange, routing_key = decode_deliver(method)
        properties, table = decode_content_header(header)
        delivery = cls(body, exchange, routing_key, queue, redelivered, None, properties, table=table)
        if not (exchange.isascii() and routing_key.isascii()):
            delivery._check("exchange", exchange)
            delivery._check("routing key", routing_key)
        for name, value in properties.items():
            if isinstance(value, str) and not value.isascii():
                delivery._check(name, value)
        return tag, delivery

    def replace(
        self,
        *,
        body: bytes | None = None,
        headers: Mapping[str, Any] | None = None,
        properties: Mapping[str, Any] | None = None,
    ) -> Delivery:
        """The same delivery with another body, or other headers or properties (all of them), for a middleware to pass on."""
        changed = Delivery(
            self.body if body is None else body,
            self.exchange,
            self.routing_key,
            self.queue,
            self.redelivered,
            self._headers if headers is None else headers,
            self.properties if properties is None else properties,
            table=self._table if headers is None else b"",
        )
        changed.text_error = self.text_error
        changed._received = self.received
        return changed

    @property
    def received(self) -> Delivery:
        """The delivery as it came, before any middleware; what is forwarded, delayed or dead-lettered."""
        return self._received or self

    @property
    def headers(self) -> Mapping[str, Any]:
        """The header table; times and numbers as the wire carries them, text that is no UTF-8 as bytes."""
        if self._headers is None:
            self._headers = {name: _readable(field.value) for name, field in self.fields().items()}
        return self._headers

    def fields(self) -> dict[str, field_tables.Field]:
        """The header table with the types and bytes that its values came with, to be sent on as it is.

        :raises warren.wire.field_tables.TableError: if it is malformed.
        """
        if self._table or self._headers is None:
            return field_tables.decode_fields(self._table)
        return {name: field_tables.field_of(value) for name, value in self._headers.items()}

    @property
    def traced(self) -> bool:
        """Whether the headers may carry a trace context; says so without decoding them."""
        return b"traceparent" in self._table if self._table else bool(self._headers)

    @property
    def message_id(self) -> str | None:
        value = self.properties.get("message_id")
        return None if value is None else str(value)

    @property
    def type(self) -> str | None:
        value = self.properties.get("type")
        return None if value is None else str(value)

    @property
    def attempt(self) -> int:
        """How often the message was brought to its handler's queue by delayed retry, counted from 1."""
        value = self.headers.get(ATTEMPT, 1)
        return value if isinstance(value, int) else 1

    @property
    def first_published(self) -> datetime | None:
        """When the logical message was first published; a republish keeps it. None if its publisher did not say.

        The header `warren-first-published` says it, else the id, if that is a UUID of version 7.
        """
        value = self.headers.get(FIRST_PUBLISHED)
        if not isinstance(value, int):
            value = milliseconds_of(self.message_id or "")
        try:
            return None if value is None else datetime.fromtimestamp(value / 1000, UTC)
        except (ValueError, OverflowError, OSError):
            # Foreign numbers may lie beyond what a calendar has.
            return None

    @property
    def republished(self) -> bool:
        """The publisher sent it again after a lost connection, so a copy may have arrived before."""
        return bool(self.headers.get(REPUBLISHED, False))

    def __repr__(self) -> str:
        return f"Delivery(queue={self.queue!r}, routing_key={self.routing_key!r}, message_id={self.message_id!r})"

    def _check(self, name: str, text: str) -> None:
        if self.text_error is None and not is_utf8(text):
            self.text_error = f"the {name.replace('_', ' ')} is not valid UTF-8"


def _readable(value: field_tables.Value) -> Any:
    """A header's value; a long string may hold any bytes (AMQP 0-9-1 section 4.2.5.3), and is bytes then."""
    if isinstance(value, str) and not is_utf8(value):
        return value.encode("utf-8", "surrogateescape")
    return value


_current: ContextVar[Delivery | None] = ContextVar("warren_delivery", default=None)


def current_delivery() -> Delivery | None:
    """The delivery that is being handled here (also in tasks that the handler started), or None."""
    return _current.get()


def enter(delivery: Delivery) -> Token[Delivery | None]:
    """Make it the current delivery, until `leave`."""
    return _current.set(delivery)


def leave(token: Token[Delivery | None]) -> None:
    _current.reset(token)


@contextmanager
def handling(delivery: Delivery) -> Iterator[None]:
    """Make it the current delivery."""
    token = enter(delivery)
    try:
        yield
    finally:
        leave(token)
