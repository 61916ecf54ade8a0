"""Life-cycle events of messages (published, delivered, ...): names, JSON keys, and the message that carries a batch.

docs/pipeline/events.md defines each event, and what a reader can conclude from a gap.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, Literal, TypeAlias

from warren.wire import field_tables, properties

MESSAGE_TYPE: Final = "warren.events"
"""Property `type` of a message that carries a batch of life-cycle events."""
CONTENT_TYPE: Final = "application/json"
"""Property `content_type` of a message that carries a batch of life-cycle events."""

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
"""Name of the event: a queue removed the message unacknowledged, and no dead-letter exchange routed it to a queue."""
PURGED: Final = "purged"
"""Name of the event: all ready messages of a queue were purged, or deleted with it. The event names no message."""
CONSUMING: Final = "consuming"
CANCELLED: Final = "cancelled"
STARTED: Final = "started"
"""First event of a source, one run of a process (see `EventBatch`). Without it, the source's first events are lost."""
STOPPED: Final = "stopped"
"""Last event of a source (see `EventBatch`) that stopped gracefully.

Without it, the source still runs, or it crashed, or its last events are lost.
"""

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
"""Names of all life-cycle events of messages, as in the JSON key `event`."""

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
    "cause": str,
}
"""Type of each JSON key of a life-cycle event. Every event has `event`, its name, and `at`, microseconds since 1970."""

Recorder: TypeAlias = Literal["sdk", "broker"]
"""Component that recorded a batch of life-cycle events; the value of the header `by`."""

Event: TypeAlias = tuple[str, int, str, int]
"""(prefix, time, message id, body size) of one life-cycle event of a message.

The prefix is the result of `event_prefix`, the time is in microseconds since 1970, the id is "" if the message has
none, and the size is in bytes, -1 if unknown. It is a plain tuple for speed: each message causes several events."""

PREFIX_CACHE_SIZE: Final = 8192
"""Number of event prefixes that stay cached; limited, because the number of different routing keys is not."""

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
    """Return the beginning of an event's JSON object: the fields that many events share, without the closing brace.

    A field that is None is left out, which means unknown or, for a bool, also false. Results are cached.

    :param event: name of the event, a constant of this module
    :param exchange: exchange of the publish; "" is the default exchange
    :param redelivered: True if the message was delivered, or published, before
    :param attempt: value of the header `warren-attempt` of a delayed retry
    :param connection: name of the AMQP connection, from `warren.wire.amqp_url.connection_name`
    :param reason: cause of the event, such as `expired`; docs/pipeline/events.md lists the causes for each event
    :param consumer: consumer tag
    :param prefetch: prefetch limit of the consumer
    :param no_ack: True if the consumer's deliveries need no acknowledgement
    :param stream: True if the queue is a stream
    """
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
    """Message that carries consecutive events of one source.

    A source is one run of an application's process, or of one virtual host in a broker. If the batch is published
    again, source and sequence stay the same, so that a reader recognizes the duplicate.

    :param source: identity of the source, unique for each run of a process
    :param by: component that recorded the events
    :param application: property `app_id`
    :param sequence: number of the first event. A source numbers its events from 1 on, including those that it had to
        drop, so that a gap between two batches is the number of missing events
    :param stream: name of the stream that stores the batch
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
        """Return the payload of the content header frame with which the batch is published.

        :raises ValueError: if a name is longer than 255 bytes
        """
        values: dict[str, properties.Property] = {
            name: value.encode() if isinstance(value, str) else value
            for name, value in self.properties.items()
        }
        table = field_tables.decode_fields(field_tables.encode(self.headers))
        return properties.encode({**values, "headers": table}, len(self.body))


def encode_events(events: Sequence[Event]) -> bytes:
    """Return the body of a batch: a JSON array with one object for each event. A field that is unknown is left out."""
    objects = []
    for beginning, at, message_id, size in events:
        identity = f',"message_id":{_text(message_id)}' if message_id else ""
        length = f',"bytes":{size}' if size >= 0 else ""
        objects.append(f'{beginning},"at":{at}{identity}{length}}}')
    return f"[{','.join(objects)}]".encode()
