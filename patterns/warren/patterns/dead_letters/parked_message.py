"""Parked messages: dead letters with the reason, time and queue of their dead-lettering, read from the SDK's headers
or, without them, from the broker's `x-death`."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from warren.sdk import Delivery, Undecodable
from warren.sdk.extend import (
    DEAD_ERROR,
    DEAD_FIRST_TIME,
    DEAD_QUEUE,
    DEAD_REASON,
    DEAD_TIME,
    DEATHS,
    ORIGIN_EXCHANGE,
    count_in,
    origin,
)


@dataclass(frozen=True, slots=True)
class ParkedMessage:
    """Dead letter, as it was read from a parking lot (a dead letter queue).

    :ivar queue: queue in which the message was dead-lettered.
    :ivar reason: reason of the dead-lettering. From the SDK: `failed`, `undecodable`, `unknown_type`,
        `unknown_content_type`, `unknown_content_encoding`, `rejected`, `reply_refused` or `expired`; from the broker:
        `rejected`, `expired`, `maxlen` or `delivery_limit`; empty if no header contains one (messages from an alternate
        exchange).
    :ivar error: the exception's type and text, or the reason that the handler gave; may be empty.
    :ivar exchange: exchange to which the message was first published, with the routing key `key`.
    :ivar deaths: how often the message was dead-lettered, including the times before it was replayed.
    """

    delivery: Delivery
    delivery_tag: int
    queue: str
    reason: str
    error: str
    exchange: str
    key: str
    deaths: int
    first_death: datetime | None
    last_death: datetime | None

    @classmethod
    def of(cls, delivery: Delivery, delivery_tag: int) -> ParkedMessage:
        """Return the `ParkedMessage` for a delivery from a dead letter queue.

        :param delivery_tag: tag with which the delivery can be acknowledged.
        """
        # An unreadable header table must not stop the reading of other messages.
        headers = delivery.readable_headers
        exchange, key = origin(delivery)
        before, first = count_in(headers.get(DEATHS), 0), _int(headers.get(DEAD_FIRST_TIME))
        if DEAD_REASON in headers:
            last = _int(headers.get(DEAD_TIME))
            return cls(
                delivery,
                delivery_tag,
                queue=str(headers.get(DEAD_QUEUE, "")),
                reason=str(headers[DEAD_REASON]),
                error=str(headers.get(DEAD_ERROR, "")),
                exchange=exchange,
                key=key,
                deaths=max(1, before),
                first_death=_instant(first if first is not None else last),
                last_death=_instant(last),
            )
        death = _latest_death(headers)
        if ORIGIN_EXCHANGE not in headers and death:
            keys = death.get("routing-keys")
            exchange = str(death.get("exchange", exchange))
            key = str(keys[0]) if isinstance(keys, list) and keys else key
        time = _int(death.get("time"))
        last = None if time is None else time * 1000
        return cls(
            delivery,
            delivery_tag,
            queue=str(death.get("queue", "")),
            reason=str(death.get("reason", "")),
            error="",
            exchange=exchange,
            key=key,
            deaths=before + count_in(death.get("count"), 0),
            first_death=_instant(first if first is not None else last),
            last_death=_instant(last),
        )

    @property
    def exception(self) -> str:
        """Name of the exception's type with which the handler failed; empty if it is unknown."""
        name, colon, _ = self.error.partition(":")
        return name if colon and name.isidentifier() else ""

    @property
    def message_id(self) -> str:
        return self.delivery.message_id or ""

    def as_dict(self) -> dict[str, Any]:
        """Return the message's metadata as values for JSON output: id, type, queue, reason, error, exchange, key,
        number and times of its dead-letterings, and size of the body."""
        return {
            "message_id": self.message_id,
            "type": self.delivery.type or "",
            "queue": self.queue,
            "reason": self.reason,
            "error": self.error,
            "exchange": self.exchange,
            "key": self.key,
            "deaths": self.deaths,
            "first_death": None if self.first_death is None else self.first_death.isoformat(),
            "last_death": None if self.last_death is None else self.last_death.isoformat(),
            "bytes": len(self.delivery.body),
        }

    def details(self) -> dict[str, Any]:
        """Return everything about the message as values for JSON output: the metadata of `as_dict`, properties, headers
        and body.

        A body that is not UTF-8 is `body_base64`.
        """
        delivery = self.delivery
        try:
            headers = {name: _json_value(value) for name, value in delivery.headers.items()}
        except Undecodable as error:
            headers = {"unreadable": str(error)}
        properties = {name: value for name, value in delivery.properties.items() if name != "message_id"}
        details = {**self.as_dict(), "properties": properties, "headers": headers}
        try:
            return {**details, "body": delivery.body.decode()}
        except UnicodeDecodeError:
            return {**details, "body_base64": base64.b64encode(delivery.body).decode()}


def _json_value(value: Any) -> Any:
    """Convert the value of a header to one that JSON can represent: bytes and unknown types become text."""
    if isinstance(value, dict):
        return {str(name): _json_value(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_json_value(inner) for inner in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return value if isinstance(value, int | float | bool | None) else str(value)


def _latest_death(headers: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the first entry of the header `x-death`, or an empty mapping: brokers put the latest death first
    (RabbitMQ, "Dead Letter Exchanges")."""
    deaths = headers.get("x-death")
    latest = deaths[0] if isinstance(deaths, list) and deaths else {}
    return latest if isinstance(latest, Mapping) else {}


def _int(value: object) -> int | None:
    return int(value) if isinstance(value, int) else None


def _instant(milliseconds: int | None) -> datetime | None:
    try:
        return None if milliseconds is None else datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (OverflowError, ValueError, OSError):  # A publisher may write any number into a header.
        return None


__all__ = ["ParkedMessage"]
