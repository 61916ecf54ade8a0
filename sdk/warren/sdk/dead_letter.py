"""A message that cannot be handled, as the copy that goes to the dead letter queue with the reason."""

from __future__ import annotations

from typing import Any

from warren.sdk.delivery import Delivery
from warren.sdk.outgoing import PERSISTENT, Outgoing
from warren.sdk.topology import Queue
from warren.wire.tables import TableError

DEAD_REASON = "warren-dead-reason"
DEAD_ERROR = "warren-dead-error"
DEAD_QUEUE = "warren-dead-queue"
DEAD_TIME = "warren-dead-time"
ERROR_CHARACTERS = 2000
DROPPED_PROPERTIES = frozenset({"expiration", "user_id"})
"""`expiration` would end the copy too; `user_id` must be the publisher's own (RabbitMQ, "Validated User-ID")."""


def dead_letter(
    delivery: Delivery, queue: Queue, reason: str, error: BaseException | None, now: float
) -> Outgoing | None:
    """The copy for the queue's dead letter exchange, or None if it has none.

    It keeps id, body and headers, and adds `warren-dead-reason`, `-error` (type and text, at most 2,000 characters),
    `-queue` and `-time` (Unix milliseconds).
    """
    if queue.dead_letter_exchange is None:
        return None
    headers: dict[str, Any] = {
        **_fields(delivery),
        DEAD_REASON: reason,
        DEAD_QUEUE: queue.name,
        DEAD_TIME: int(now * 1000),
    }
    if error is not None:
        headers[DEAD_ERROR] = f"{type(error).__name__}: {error}"[:ERROR_CHARACTERS]
    kept = {name: value for name, value in delivery.properties.items() if name not in DROPPED_PROPERTIES}
    kept["delivery_mode"] = PERSISTENT
    key = delivery.routing_key if queue.dead_letter_key is None else queue.dead_letter_key
    return Outgoing(queue.dead_letter_exchange, key, kept, headers, delivery.body)


def _fields(delivery: Delivery) -> dict[str, Any]:
    """The headers as they came; a table that nobody can read is left out, so that the message itself is not lost."""
    try:
        return {**delivery.fields()}
    except TableError:
        return {}
