"""Aggregation of captured message events (published, delivered, acknowledged, ...) to counts and earliest times: one
row for each message and queue, and one with a null queue for the publication of the message.
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
"""Columns with an event's time, the application or broker that captured it (`source`), its number there, and its
connection. Source and number together identify the event."""


Condition = Callable[[], "Column"]


def facts_of(events: DataFrame) -> DataFrame:
    """Return one row for each message id and queue, with counts and earliest times of the message's captured events.

    The column `sent` describes the first publication as the application captured it, `taken` the first as the broker
    captured it. For deliveries there is one set of columns from the application's events (`..._sdk`) and one from the
    broker's (`..._broker`). All messages without an id share a row.

    :param events: one row for each captured event, from `event_rows.events_of`
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
    """Return aggregate columns about a message's deliveries, acknowledgements and rejections.

    :param side: whose events are used: `sdk` for those that applications captured, or `broker`
    """
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
    """Return a function that makes the column "this row is an event of the given kind, captured by the given side".

    :param kind: kind of event, such as `published` or `delivered`
    :param side: `sdk` for events that applications captured, or `broker`; None for both
    """
    from pyspark.sql import functions as F

    def condition() -> Column:
        same = F.col("event") == kind
        return same if side is None else same & (F.col("by") == side)

    return condition


def count(name: str, condition: Condition) -> Column:
    """Return an aggregate column called `name`: the number of events that fulfil the condition.

    :param condition: returns the column that is true for these events, from `event_is`
    """
    from pyspark.sql import functions as F

    return F.count_if(condition()).alias(name)


def earliest(name: str, condition: Condition) -> Column:
    """Return an aggregate column called `name`: the earliest time of the events that fulfil the condition.

    :param condition: returns the column that is true for these events, from `event_is`
    """
    from pyspark.sql import functions as F

    return F.min(F.when(condition(), F.col("at"))).alias(name)


def first(name: str, condition: Condition, *known: str) -> Column:
    """Return an aggregate column called `name`: the earliest event that fulfils the condition, as a struct of columns.

    :param condition: returns the column that is true for these events, from `event_is`
    :param known: columns of the struct, besides those of `PLACE` (time, source, number, connection)
    """
    from pyspark.sql import functions as F

    return F.min(F.when(condition(), F.struct(*PLACE, *known))).alias(name)


def attempts() -> Column:
    """Return an aggregate column: the set of attempt numbers with which the message was delivered.

    A retry can publish a copy of the message with the next attempt number. Each attempt is then acknowledged once,
    which is no duplicate.
    """
    from pyspark.sql import functions as F

    number = F.coalesce("attempt", F.lit(1))
    return F.collect_set(F.when(F.col("event") == event.DELIVERED, number)).alias("attempts")


def reason() -> Column:
    """Return an aggregate column with the reason of the events that end a message without an acknowledgement
    (expired, dead-lettered, dropped, rejected, returned, nacked); of several reasons, the first by alphabet.
    """
    from pyspark.sql import functions as F

    ends = [event.EXPIRED, event.DEAD_LETTERED, event.DROPPED, event.REJECTED, event.RETURNED, event.NACKED]
    return F.min(F.when(F.col("event").isin(ends), F.col("reason"))).alias("reason")
