"""Facts about messages from their events: a row for each message and queue, and one with a null queue for its
publication.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from warren.core import capture_events as event

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

KEY = ("message_id", "queue")
SIDES = ("sdk", "broker")
PLACE = ("at", "source", "sequence", "connection")
"""Columns that identify an event and its place in the order of its source."""


Condition = Callable[[], "Column"]


def facts_of(events: DataFrame) -> DataFrame:
    """Return the facts, from the columns of `events_of`; messages without an id share a row.

    `sent` and `taken` are the first publication as seen by the application and by the broker. The other columns are
    counts, first times, and, for each of the two, what it saw of the deliveries.
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
    """Return the columns for deliveries as seen by one side."""
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
    """Return the condition that a row is an event of this kind, recorded by this side."""
    from pyspark.sql import functions as F

    def condition() -> Column:
        same = F.col("event") == kind
        return same if side is None else same & (F.col("by") == side)

    return condition


def count(name: str, condition: Condition) -> Column:
    """Count the rows that fulfil the condition."""
    from pyspark.sql import functions as F

    return F.count_if(condition()).alias(name)


def earliest(name: str, condition: Condition) -> Column:
    """Return the earliest time of the rows that fulfil the condition."""
    from pyspark.sql import functions as F

    return F.min(F.when(condition(), F.col("at"))).alias(name)


def first(name: str, condition: Condition, *known: str) -> Column:
    """Return the earliest row that fulfils the condition: its place, and the named columns."""
    from pyspark.sql import functions as F

    return F.min(F.when(condition(), F.struct(*PLACE, *known))).alias(name)


def attempts() -> Column:
    """Return the numbers of the delivered attempts: a retry that publishes a copy acknowledges each of them once."""
    from pyspark.sql import functions as F

    number = F.coalesce("attempt", F.lit(1))
    return F.collect_set(F.when(F.col("event") == event.DELIVERED, number)).alias("attempts")


def reason() -> Column:
    """Return a reason why the message left its queue or publisher without an acknowledgement."""
    from pyspark.sql import functions as F

    ends = [event.EXPIRED, event.DEAD_LETTERED, event.DROPPED, event.REJECTED, event.RETURNED, event.NACKED]
    return F.min(F.when(F.col("event").isin(ends), F.col("reason"))).alias("reason")
