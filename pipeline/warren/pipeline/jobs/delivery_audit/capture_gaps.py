"""Gaps in captured events: message events (published, delivered, acknowledged, ...) that an application or broker
captured, and that were lost before they reached the stream.

Each source (an application or broker that captures events) numbers its events from 1 on, so a missing number is a lost
event.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from warren.core import capture_events as event

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

PIECE = 1000
"""Number of consecutive event numbers of a source (an application or broker that captures events) that one row of the
table `capture` covers. Single numbers are compared only for rows that have fewer events than numbers."""
KEY = ("source", "by", "app", "piece")


def capture_of(events: DataFrame) -> DataFrame:
    """Return the table `capture`: one row for each block of `PIECE` consecutive event numbers of a source (an
    application or broker that captures events).

    A row has, among others, the number of captured events, their first and last number, and their earliest
    and latest time.
    """
    from pyspark.sql import functions as F

    return (
        events.select("*", piece())
        .groupBy(*KEY)
        .agg(
            F.count(F.lit(1)).alias("events"),
            F.min("sequence").alias("first"),
            F.max("sequence").alias("last"),
            F.min("at").alias("began"),
            F.max("at").alias("ended"),
            F.max("captured_at").alias("captured_at"),
            F.max(F.col("event") == event.STOPPED).alias("stopped"),
            F.count_if(F.col("message_id").isNull() & (F.col("event") == event.PUBLISHED)).alias(
                "without_id"
            ),
            F.collect_set("queue").alias("queues"),
        )
    )


def incomplete_of(pieces: DataFrame) -> DataFrame:
    """Return the rows of the table `capture` in which event numbers are missing, or before which numbers are missing
    since the source's previous row.

    :param pieces: the table `capture`: number of events, and first and last event number, for each block of `PIECE`
        numbers of a source
    :return: the rows, each with the last event number and time of the row before it
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    in_order = Window.partitionBy("source").orderBy("piece")
    followed = pieces.select(
        *KEY,
        "events",
        "last",
        F.lag("last", 1, 0).over(in_order).alias("before"),
        F.lag("ended").over(in_order).alias("before_at"),
    )
    return followed.where(F.col("last") - F.col("before") > F.col("events"))


def gaps_of(events: DataFrame, incomplete: DataFrame) -> DataFrame:
    """Return one row for each gap in the event numbers of a source (an application or broker that captures events).

    `missing` is the number of lost events, `since` the time of the event before the gap (null if the gap is at the
    source's beginning) and `until` the time of the event after it. Events lost at the end of a source are not found,
    because no later number reveals them; the column `stopped` of the table `capture` tells whether the source reported
    its end.

    :param events: all events; only those near a gap are read
    :param incomplete: rows of the table `capture` with missing event numbers, from `incomplete_of`
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    within = events.select(*KEY[:-1], piece(), "sequence", "at").join(
        incomplete.select("source", "piece"), ["source", "piece"]
    )
    before = incomplete.select(*KEY, F.col("before").alias("sequence"), F.col("before_at").alias("at"))
    in_order = Window.partitionBy("source", "piece").orderBy("sequence")
    steps = (
        within.select(before.columns)
        .unionByName(before)
        .select(
            *KEY[:-1],
            (F.col("sequence") - F.lag("sequence").over(in_order) - 1).alias("missing"),
            F.lag("at").over(in_order).alias("since"),
            F.col("at").alias("until"),
        )
    )
    return steps.where(F.col("missing") > 0)


def unobserved_of(pieces: DataFrame, missing: DataFrame) -> DataFrame:
    """Return `queue`, `since` and `until`: the periods in which events of a queue may be missing.

    A gap in the event numbers of a source (an application or broker) counts for every queue that the source has
    captured events of.

    :param pieces: the table `capture`, which lists the queues of each source
    :param missing: one row for each gap, from `gaps_of`
    """
    from pyspark.sql import functions as F

    queues = pieces.select("source", F.explode("queues").alias("queue")).distinct()
    return missing.join(queues, "source").select("queue", "since", "until")


def piece() -> Column:
    """Return the column `piece`: the index, from 0 on, of the block of `PIECE` consecutive numbers that contains the
    event's number.
    """
    from pyspark.sql import functions as F

    return F.floor((F.col("sequence") - 1) / PIECE).alias("piece")
