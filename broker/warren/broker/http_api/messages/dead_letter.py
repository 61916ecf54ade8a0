"""Dead letters: why, when and in which queue a message was dead-lettered, and where it was published before.

The SDK's headers say it, or else the broker's `x-death`. `warren dlq` reads them in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from warren.broker.management.json_values import plain_value
from warren.broker.management.request import Json
from warren.core.dead_letter_causes import group_id, normalise_error
from warren.wire.field_tables import Field, Value
from warren.wire.properties import Properties

DEAD_REASON: Final = "warren-dead-reason"
DEAD_ERROR: Final = "warren-dead-error"
DEAD_QUEUE: Final = "warren-dead-queue"
DEAD_TIME: Final = "warren-dead-time"
DEAD_FIRST_TIME: Final = "warren-dead-first-time"
DEATHS: Final = "warren-deaths"
ORIGIN_EXCHANGE: Final = "warren-exchange"
ORIGIN_KEY: Final = "warren-key"
ATTEMPT: Final = "warren-attempt"
REPLAYED: Final = "warren-replayed"
EDITED: Final = "warren-edited"
"""Headers that the SDK writes into dead letters and into replayed messages."""
ERROR_CHARACTERS: Final = 1000
"""Most characters of an error that are shown."""


class DeadLetter(NamedTuple):
    """Account of a dead letter.

    :ivar queue: queue in which the message was dead-lettered.
    :ivar type: type of the message; empty if it has none.
    :ivar reason: reason, such as `failed`, `rejected` or `expired`; empty if no header says it.
    :ivar error: type and text of the exception with which a handler failed; may be empty.
    :ivar exchange: exchange to which it was published, with the first of `keys`; the others are those of its CC.
    :ivar deaths: number of its dead-letterings.
    :ivar first: time of the first one in milliseconds since 1970; None if it is not known.
    :ivar last: time of the last one.
    """

    queue: str
    type: str
    reason: str
    error: str
    exchange: str
    keys: tuple[str, ...]
    deaths: int
    first: int | None
    last: int | None

    @classmethod
    def of(cls, properties: Properties) -> DeadLetter | None:
        """Return the account of a message; None if it is no dead letter."""
        headers = properties.headers
        death = _latest_death(headers)
        if DEAD_REASON not in headers and not death:
            return None
        kind = (properties.data("type") or b"").decode(errors="replace")
        exchange, key = _text(headers, ORIGIN_EXCHANGE), _text(headers, ORIGIN_KEY)
        has_origin = ORIGIN_EXCHANGE in headers and ORIGIN_KEY in headers
        keys: tuple[str, ...] = (key,)
        if not has_origin and death:
            listed = death.get("routing-keys")
            exchange = _shown(death.get("exchange", ""))
            keys = tuple(_shown(each) for each in listed) if isinstance(listed, list) and listed else ("",)
        before, first = _number(headers, DEATHS) or 0, _number(headers, DEAD_FIRST_TIME)
        if DEAD_REASON in headers:
            last = _number(headers, DEAD_TIME)
            return cls(
                _text(headers, DEAD_QUEUE),
                kind,
                _text(headers, DEAD_REASON),
                _text(headers, DEAD_ERROR),
                exchange,
                keys,
                max(1, before),
                first if first is not None else last,
                last,
            )
        time, count = death.get("time"), death.get("count")
        last = int(time) * 1000 if isinstance(time, int) else None
        return cls(
            _shown(death.get("queue", "")),
            kind,
            _shown(death.get("reason", "")),
            "",
            exchange,
            keys,
            before + (int(count) if isinstance(count, int) else 0),
            first if first is not None else last,
            last,
        )

    @property
    def cause(self) -> tuple[str, str, str, str]:
        """Queue, type, reason, and the error without varying values, which letters with the same defect share."""
        return self.queue, self.type, self.reason, normalise_error(self.error[:ERROR_CHARACTERS])

    @property
    def group(self) -> str:
        """Id of the group of its cause; that of `warren dlq groups`."""
        return group_id(self.cause)

    @property
    def exception(self) -> str:
        """Name of the type of the exception; empty if it is not known."""
        name, colon, _ = self.error.partition(":")
        return name if colon and name.isidentifier() else ""

    def as_json(self) -> dict[str, Json]:
        """Return the account as the API shows it."""
        return {
            "queue": self.queue,
            "reason": self.reason,
            "error": self.error[:ERROR_CHARACTERS],
            "exception": self.exception,
            "exchange": self.exchange,
            "routing_key": self.keys[0],
            "deaths": self.deaths,
            "first_death": self.first,
            "last_death": self.last,
            "group": self.group,
        }


def _latest_death(headers: Mapping[str, Field]) -> Mapping[str, Value]:
    """Return the first entry of x-death, which is the latest; an empty mapping if there is none."""
    field = headers.get("x-death")
    deaths = field.value if field is not None else None
    latest = deaths[0] if isinstance(deaths, list) and deaths else {}
    return latest if isinstance(latest, dict) else {}


def _text(headers: Mapping[str, Field], name: str) -> str:
    field = headers.get(name)
    return "" if field is None else _shown(field.value)


def _shown(value: Value) -> str:
    return str(plain_value(value))


def _number(headers: Mapping[str, Field], name: str) -> int | None:
    field = headers.get(name)
    return int(field.value) if field is not None and isinstance(field.value, int) else None
