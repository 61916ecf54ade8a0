"""What the events say about a message: a row a message and queue, or, where `queue` is null, about its publication."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from warren.core import capture_events as event

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

KEY = ("message_id", "queue")
SIDES = ("sdk", "broker")
PLACE = ("at", "source", "sequence", "connection")
"""When something was seen, and where it stands in the order of who saw it."""


Condition = Callable[[], "Column"]


def facts_of(events: DataFrame) -> DataFrame:
    """The facts, from the columns of `events_of`; what has no message id has none in its row.

    `sent` and `taken` are the first publication as the application and the broker saw it; the others are counts, first
    times, and for either side what it saw of the deliveries.
    """
    from pyspark.sql import functions as F

    published = ("exchange", "routing_key", "bytes", "reason")
    return events.groupBy(*KEY).agg(
        first("sent", event_is(event.PUBLISHED, "sdk"), *published),
        count("sends", event_is(event.PUBLISHED, "sdk")),
        first("taken", event_is(event.PUBLISHED, "broker"), *published),
        count("takes", event_is(event.PUBLISHED, "broker")),
        earliest("confirmed_at", event_is(event.CONFIRMED)),
        count("nacks", event_is(event.NACKED)),
        count("returns", event_is(event.RETURNED)),
        *[fact for side in SIDES for fact in deliveries(side)],
        attempts(),
        count("requeues", event_is(event.REQUEUED)),
        count("expiries", event_is(event.EXPIRED)),
        *[count(f"dead_letters_{side}", event_is(event.DEAD_LETTERED, side)) for side in SIDES],
        count("drops", event_is(event.DROPPED)),
        reason(),
        # Readers of a stream get what others have read, and acknowledge only to get more.
        F.bool_or("stream").alias("stream"),
        F.max("at").alias("last_at"),
        F.max("captured_at").alias("captured_at"),
    )


def deliveries(side: str) -> list[Column]:
    """What one side saw of the deliveries."""
    from pyspark.sql import functions as F

    delivered = event_is(event.DELIVERED, side)
    known = ("consumer", "exchange", "routing_key", "redelivered", "no_ack")
    return [
        first(f"first_{side}", delivered, *known),
        count(f"deliveries_{side}", delivered),
        count(f"redeliveries_{side}", lambda: delivered() & F.col("redelivered")),
        count(f"automatic_{side}", lambda: delivered() & F.col("no_ack")),
        earliest(f"acked_at_{side}", event_is(event.ACKED, side)),
        count(f"acks_{side}", event_is(event.ACKED, side)),
        count(f"rejects_{side}", event_is(event.REJECTED, side)),
    ]


def event_is(kind: str, side: str | None = None) -> Condition:
    from pyspark.sql import functions as F

    def condition() -> Column:
        same = F.col("event") == kind
        return same if side is None else same & (F.col("by") == side)

    return condition


def count(name: str, condition: Condition) -> Column:
    from pyspark.sql import functions as F

    return F.count_if(condition()).alias(name)


def earliest(name: str, condition: Condition) -> Column:
    from pyspark.sql import functions as F

    return F.min(F.when(condition(), F.col("at"))).alias(name)


def first(name: str, condition: Condition, *known: str) -> Column:
    """The earliest such event: where it stands, and what it says in these keys."""
    from pyspark.sql import functions as F

    return F.min(F.when(condition(), F.struct(*PLACE, *known))).alias(name)


def attempts() -> Column:
    """The numbers of the attempts that were delivered: a retry that publishes a copy acknowledges each of them once."""
    from pyspark.sql import functions as F

    number = F.coalesce("attempt", F.lit(1))
    return F.collect_set(F.when(F.col("event") == event.DELIVERED, number)).alias("attempts")


def reason() -> Column:
    """Why it left its queue without an acknowledgement, or its publisher; one of them, if there are several."""
    from pyspark.sql import functions as F

    ends = [event.EXPIRED, event.DEAD_LETTERED, event.DROPPED, event.REJECTED, event.RETURNED, event.NACKED]
    return F.min(F.when(F.col("event").isin(ends), F.col("reason"))).alias("reason")
