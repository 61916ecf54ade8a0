"""Dead letter copies: the SDK's copy of a message that cannot be handled, with the reason in its headers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Any, Final

from warren.sdk.consume.delivery import DEADLINE, Delivery, count_in
from warren.sdk.errors import ConfigError
from warren.sdk.exception_text import describe_exception
from warren.sdk.messages.forwarding import BROKER_HEADERS, ORIGIN_EXCHANGE, ORIGIN_KEY, copy, fields, origin
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
LATEST_TIME: Final = 253_402_300_799_999
"""End of the year 9999 in Unix milliseconds; a later first time was not written by an App."""
BRIEF_ERROR_CHARACTERS = 200
"""Characters of the error in a copy that is not whole."""


class CopySize(Enum):
    """Size of a dead letter's headers, which must fit in one frame."""

    WHOLE = "whole"
    """All headers of the message, and 2,000 characters of the error."""
    BRIEF = "brief"
    """200 characters of the error, and no headers in which a broker recorded earlier deaths."""
    BARE = "bare"
    """No headers of the message: only those of the dead letter."""


def dead_letter_copy(
    delivery: Delivery,
    queue: Queue,
    reason: str,
    error: BaseException | None,
    now: float,
    size: CopySize = CopySize.WHOLE,
) -> Outgoing:
    """Return a copy of the delivery for the dead letter exchange of its queue.

    The copy keeps id, body and headers, and gets these headers: `warren-dead-reason`; `warren-dead-error`, type and
    text of the error, at most 2,000 characters; `warren-dead-queue`; `warren-dead-time`, in Unix milliseconds;
    `warren-deaths`, how often the message was dead-lettered; `warren-dead-first-time`, when that first happened;
    `warren-exchange` and `warren-key`, the address of the first publish. `warren-deaths` goes on counting, and the
    first time stays, if a message is replayed from the dead letter queue and dead-lettered again.

    :param queue: the queue from which the message was consumed; it has a dead letter exchange.
    :param reason: word for the cause, such as `failed`.
    :param error: the handler's error, or None.
    :param now: Unix time in seconds.
    :param size: size of its headers; a smaller one may fit where the whole ones do not.
    """
    assert queue.dead_letter_exchange is not None
    kept = fields(delivery)
    known = delivery.readable_headers
    first, deaths = known.get(DEAD_FIRST_TIME), known.get(DEATHS)
    address = origin(delivery)
    time = int(now * 1000)
    if size is CopySize.BRIEF:
        kept = {name: field for name, field in kept.items() if name not in BROKER_HEADERS}
    elif size is CopySize.BARE:
        kept = {}
    # A request that is replayed is to be handled, although nobody waits for its reply.
    kept.pop(DEADLINE, None)
    headers: dict[str, Any] = {
        **kept,
        DEAD_REASON: reason,
        DEAD_QUEUE: queue.name,
        DEAD_TIME: time,
        DEAD_FIRST_TIME: first if _is_time(first) else time,
        DEATHS: count_in(deaths, 0) + 1,
        ORIGIN_EXCHANGE: address[0],
        ORIGIN_KEY: address[1],
    }
    if error is not None:
        longest = ERROR_CHARACTERS if size is CopySize.WHOLE else BRIEF_ERROR_CHARACTERS
        headers[DEAD_ERROR] = describe_exception(error)[:longest]
    key = delivery.routing_key if queue.dead_letter_key is None else queue.dead_letter_key
    return copy(delivery, queue.dead_letter_exchange, key, headers)


def _is_time(value: object) -> bool:
    """Return whether a header is a time in Unix milliseconds; any client can write another number into it."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LATEST_TIME


async def publish_fitting(
    publish: Callable[[Outgoing], Awaitable[object]],
    make: Callable[[CopySize], Outgoing],
    sizes: tuple[CopySize, ...],
) -> None:
    """Publish a dead letter copy of the first of these sizes whose headers fit in a frame.

    :param make: makes the copy.
    :raises WarrenError: if it is not published; a ConfigError if none of the sizes fits.
    """
    *larger, smallest = sizes
    for size in larger:
        try:
            await publish(make(size))
        except ConfigError:
            continue
        return
    await publish(make(smallest))
