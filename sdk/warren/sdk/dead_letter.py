"""A message that cannot be handled, as the copy that goes to the dead letter queue with the reason."""

from __future__ import annotations

from pamqp import commands as spec

from warren.sdk.codec import PERSISTENT, Outgoing
from warren.sdk.delivery import Delivery
from warren.sdk.topology import Queue

DEAD_REASON = "warren-dead-reason"
DEAD_ERROR = "warren-dead-error"
DEAD_QUEUE = "warren-dead-queue"
DEAD_TIME = "warren-dead-time"
ERROR_CHARACTERS = 2000
DROPPED_PROPERTIES = frozenset({"expiration", "user_id", "delivery_mode", "type"})
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
    headers = {**delivery.headers, DEAD_REASON: reason, DEAD_QUEUE: queue.name, DEAD_TIME: int(now * 1000)}
    if error is not None:
        headers[DEAD_ERROR] = f"{type(error).__name__}: {error}"[:ERROR_CHARACTERS]
    kept = {name: value for name, value in delivery.properties.items() if name not in DROPPED_PROPERTIES}
    return Outgoing(
        exchange=queue.dead_letter_exchange,
        routing_key=delivery.routing_key if queue.dead_letter_key is None else queue.dead_letter_key,
        properties=spec.Basic.Properties(
            **kept, headers=headers, delivery_mode=PERSISTENT, message_type=delivery.type
        ),
        body=delivery.body,
    )
