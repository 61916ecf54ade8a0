"""Dead letter copies: the SDK's copy of a message that cannot be handled, with the reason in its headers."""

from __future__ import annotations

from typing import Any

from warren.sdk.consume.delivery import Delivery
from warren.sdk.messages.forwarding import ORIGIN_EXCHANGE, ORIGIN_KEY, copy, fields, origin
from warren.sdk.publish.outgoing import Outgoing
from warren.sdk.topology.queue import Queue

DEAD_REASON = "warren-dead-reason"
"""Header of a dead letter: reason, such as `failed` or `undecodable`."""
DEAD_ERROR = "warren-dead-error"
"""Header of a dead letter: type and text of the handler's error."""
DEAD_QUEUE = "warren-dead-queue"
"""Header of a dead letter: queue in which it died."""
DEAD_TIME = "warren-dead-time"
"""Header of a dead letter: time of its latest death."""
DEAD_FIRST_TIME = "warren-dead-first-time"
"""Header of a dead letter: time of its first death."""
DEATHS = "warren-deaths"
"""Header of a dead letter: number of its deaths."""
ERROR_CHARACTERS = 2000


def dead_letter_copy(
    delivery: Delivery, queue: Queue, reason: str, error: BaseException | None, now: float
) -> Outgoing | None:
    """Return a copy of the delivery for the dead letter exchange of its queue, or None if the queue has none.

    The copy keeps id, body and headers, and gets these headers: `warren-dead-reason`; `warren-dead-error`, type and
    text of the error, at most 2,000 characters; `warren-dead-queue`; `warren-dead-time`, in Unix milliseconds;
    `warren-deaths`, how often the message was dead-lettered; `warren-dead-first-time`, when that first happened;
    `warren-exchange` and `warren-key`, the address of the first publish. `warren-deaths` goes on counting, and the
    first time stays, if a message is replayed from the dead letter queue and dead-lettered again.

    :param queue: the queue from which the message was consumed.
    :param reason: word for the cause, such as `failed`.
    :param error: the handler's error, or None.
    :param now: Unix time in seconds.
    """
    if queue.dead_letter_exchange is None:
        return None
    kept = fields(delivery)
    known = delivery.headers if kept else {}
    first, deaths = known.get(DEAD_FIRST_TIME), known.get(DEATHS)
    address = origin(delivery) if kept else (delivery.exchange, delivery.routing_key)
    time = int(now * 1000)
    headers: dict[str, Any] = {
        **kept,
        DEAD_REASON: reason,
        DEAD_QUEUE: queue.name,
        DEAD_TIME: time,
        DEAD_FIRST_TIME: first if isinstance(first, int) else time,
        DEATHS: deaths + 1 if isinstance(deaths, int) else 1,
        ORIGIN_EXCHANGE: address[0],
        ORIGIN_KEY: address[1],
    }
    if error is not None:
        headers[DEAD_ERROR] = f"{type(error).__name__}: {error}"[:ERROR_CHARACTERS]
    key = delivery.routing_key if queue.dead_letter_key is None else queue.dead_letter_key
    return copy(delivery, queue.dead_letter_exchange, key, headers)
