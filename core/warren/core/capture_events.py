"""Life-cycle events of messages: their names and keys, and the message that carries a batch of them on a stream.

What each event means, and what a reader can conclude from a gap, stands in docs/pipeline/events.md.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, Literal, TypeAlias

from warren.wire import field_tables, properties

MESSAGE_TYPE: Final = "warren.events"
"""The property `type` of a message that carries a batch."""
CONTENT_TYPE: Final = "application/json"

PUBLISHED: Final = "published"
RETURNED: Final = "returned"
CONFIRMED: Final = "confirmed"
NACKED: Final = "nacked"
DELIVERED: Final = "delivered"
ACKED: Final = "acked"
REJECTED: Final = "rejected"
REQUEUED: Final = "requeued"
EXPIRED: Final = "expired"
DEAD_LETTERED: Final = "dead_lettered"
DROPPED: Final = "dropped"
"""A queue is done with it, and nothing has taken it instead: no dead letter exchange, or none that routes."""
PURGED: Final = "purged"
"""All that was ready in a queue is gone, by an operator or with the queue; of no message."""
CONSUMING: Final = "consuming"
CANCELLED: Final = "cancelled"
STARTED: Final = "started"
"""The first event of a source; without it, the beginning is missing."""
STOPPED: Final = "stopped"
"""The last event of a source that ended in order; without it, it runs still, or the end is missing."""

EVENTS: Final = (
    PUBLISHED,
    RETURNED,
    CONFIRMED,
    NACKED,
    DELIVERED,
    ACKED,
    REJECTED,
    REQUEUED,
    EXPIRED,
    DEAD_LETTERED,
    DROPPED,
    PURGED,
    CONSUMING,
    CANCELLED,
    STARTED,
    STOPPED,
)

EVENT_KEYS: Final[dict[str, type]] = {
    "event": str,
    "at": int,
    "message_id": str,
    "exchange": str,
    "routing_key": str,
    "queue": str,
    "reason": str,
    "redelivered": bool,
    "attempt": int,
    "bytes": int,
    "connection": str,
    "consumer": str,
    "prefetch": int,
    "no_ack": bool,
    "stream": bool,
}
"""What an event may have; `event` and `at` (microseconds since 1970) it has always."""

Recorder: TypeAlias = Literal["sdk", "broker"]
"""Who saw it."""

Event: TypeAlias = tuple[str, int, str, int]
"""One event: its prefix (of `event_prefix`), the time (microseconds since 1970), the id of the message ("" if it has none)
and the bytes of its body (-1 if unknown). A plain tuple: one is made for each message and each step of its life."""

PREFIX_CACHE_SIZE: Final = 8192
"""How many beginnings of events are kept: routing keys may be without number."""

_text = json.JSONEncoder().encode


@lru_cache(PREFIX_CACHE_SIZE)
def event_prefix(
    event: str,
    exchange: str | None = None,
    routing_key: str | None = None,
    queue: str | None = None,
    redelivered: bool | None = None,
    attempt: int | None = None,
    connection: str | None = None,
    reason: str | None = None,
    consumer: str | None = None,
    prefetch: int | None = None,
    no_ack: bool | None = None,
    stream: bool | None = None,
) -> str:
    """What many events have in common, encoded once: the beginning of their JSON objects."""
    values = {
        "event": event,
        "exchange": exchange,
        "routing_key": routing_key,
        "queue": queue,
        "redelivered": redelivered,
        "attempt": attempt,
        "reason": reason,
        "connection": connection,
        "consumer": consumer,
        "prefetch": prefetch,
        "no_ack": no_ack,
        "stream": stream,
    }
    present = {key: value for key, value in values.items() if value is not None}
    return json.dumps(present, separators=(",", ":"))[:-1]


class EventBatch:
    """The message of some events of one source: sent again with the same identity, however often it takes.

    :param source: who tells them: unique for each run of a process.
    :param sequence: of the first event. A source numbers its events from 1 on; one that it could not keep has its number,
        too, so that a gap between batches says how many are missing.
    """

    def __init__(
        self, source: str, by: Recorder, application: str, sequence: int, events: Sequence[Event], stream: str
    ) -> None:
        self.stream: str = stream
        self.sequence: int = sequence
        self.count: int = len(events)
        self.message_id: str = f"{source}:{sequence}"
        self.body: bytes = encode_events(events)
        self.headers: dict[str, field_tables.Value] = {
            "source": source,
            "by": by,
            "sequence": sequence,
            "count": len(events),
        }
        self.properties: dict[str, str | int] = {
            "content_type": CONTENT_TYPE,
            "delivery_mode": 2,
            "message_id": self.message_id,
            "timestamp": events[0][1] // 1_000_000,
            "type": MESSAGE_TYPE,
            "app_id": application,
        }

    def header(self) -> bytes:
        """The payload of the content's header frame.

        :raises ValueError: if a name is longer than 255 bytes.
        """
        values: dict[str, properties.Property] = {
            name: value.encode() if isinstance(value, str) else value
            for name, value in self.properties.items()
        }
        table = field_tables.decode_fields(field_tables.encode(self.headers))
        return properties.encode({**values, "headers": table}, len(self.body))


def encode_events(events: Sequence[Event]) -> bytes:
    """The body of a batch: a JSON array of objects, absent keys for what is not known."""
    objects = []
    for beginning, at, message_id, size in events:
        identity = f',"message_id":{_text(message_id)}' if message_id else ""
        length = f',"bytes":{size}' if size >= 0 else ""
        objects.append(f'{beginning},"at":{at}{identity}{length}}}')
    return f"[{','.join(objects)}]".encode()
