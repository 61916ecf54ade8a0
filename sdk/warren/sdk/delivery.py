"""Delivery: one message as it arrived, for handlers that want more than its content."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

ATTEMPT = "warren-attempt"
FIRST_PUBLISHED = "warren-first-published"
REPUBLISHED = "warren-republished"
RETURN_TOKEN = "warren-token"
"""Set only while another publish with the same message id is in flight on the channel; tells their returns apart."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """One delivery. A handler gets it through a parameter that is annotated with `Delivery`.

    :ivar queue: the queue it came from.
    :ivar headers: the header table; times and numbers as the wire carries them.
    :ivar properties: the other AMQP properties that were set, by their AMQP names.
    :ivar redelivered: the broker may have delivered it before.
    """

    body: bytes
    exchange: str
    routing_key: str
    queue: str
    redelivered: bool
    headers: Mapping[str, Any]
    properties: Mapping[str, Any]

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
        """When the logical message was first published; a republish keeps it."""
        value = self.headers.get(FIRST_PUBLISHED)
        return datetime.fromtimestamp(value / 1000, UTC) if isinstance(value, int) else None

    @property
    def republished(self) -> bool:
        """The publisher sent it again after a lost connection, so a copy may have arrived before."""
        return bool(self.headers.get(REPUBLISHED, False))


_current: ContextVar[Delivery | None] = ContextVar("warren_delivery", default=None)


def current_delivery() -> Delivery | None:
    """The delivery that is being handled here (also in tasks that the handler started), or None."""
    return _current.get()


@contextmanager
def handling(delivery: Delivery) -> Iterator[None]:
    """Make it the current delivery."""
    token = _current.set(delivery)
    try:
        yield
    finally:
        _current.reset(token)
