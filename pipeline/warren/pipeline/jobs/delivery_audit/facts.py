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
        first("sent", told(event.PUBLISHED, "sdk"), *published),
        count("sends", told(event.PUBLISHED, "sdk")),
        first("taken", told(event.PUBLISHED, "broker"), *published),
        count("takes", told(event.PUBLISHED, "broker")),
        earliest("confirmed_at", told(event.CONFIRMED)),
        count("nacks", told(event.NACKED)),
        count("returns", told(event.RETURNED)),
        *[fact for side in SIDES for fact in deliveries(side)],
        attempts(),
        count("requeues", told(event.REQUEUED)),
        count("expiries", told(event.EXPIRED)),
        *[count(f"dead_letters_{side}", told(event.DEAD_LETTERED, side)) for side in SIDES],
        count("drops", told(event.DROPPED)),
        reason(),
        # Readers of a stream get what others have read, and acknowledge only to get more.
        F.bool_or("stream").alias("stream"),
        F.max("at").alias("last_at"),
        F.max("captured_at").alias("captured_at"),
    )


def deliveries(side: str) -> list[Column]:
    """What one side saw of the deliveries."""
    from pyspark.sql import functions as F

    delivered = told(event.DELIVERED, side)
    known = ("consumer", "exchange", "routing_key", "redelivered", "no_ack")
    return [
        first(f"first_{side}", delivered, *known),
        count(f"deliveries_{side}", delivered),
        count(f"redeliveries_{side}", lambda: delivered() & F.col("redelivered")),
        count(f"automatic_{side}", lambda: delivered() & F.col("no_ack")),
        earliest(f"acked_at_{side}", told(event.ACKED, side)),
        count(f"acks_{side}", told(event.ACKED, side)),
        count(f"rejects_{side}", told(event.REJECTED, side)),
    ]


def told(kind: str, side: str | None = None) -> Condition:
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
