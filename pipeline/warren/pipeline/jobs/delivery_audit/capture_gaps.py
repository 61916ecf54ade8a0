"""Gaps in capture: sequence numbers that are missing from the sources, and their times."""

from __future__ import annotations

from typing import TYPE_CHECKING

from warren.core import capture_events as event

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

PIECE = 1000
"""Events of a source that are one row of the table; gaps are searched only where these rows are incomplete."""
KEY = ("source", "by", "app", "piece")


def capture_of(events: DataFrame) -> DataFrame:
    """Return one row for each part of a source's sequence: the number of its events, and their times."""
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
    """Return the parts in or before which events are missing, with the end of the part before."""
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
    """Return one row for each gap: `missing` events of `source`, after `since` (null: from its beginning) and before
    `until`.

    The end of a source's sequence is not a gap, although the source may have had more events: see `stopped`.

    :param events: all events; only those near a gap are read
    :param incomplete: result of `incomplete_of`
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
    """Return `queue`, `since` and `until`: times in which events are missing from a source that captures the queue.

    :param missing: result of `gaps_of`
    """
    from pyspark.sql import functions as F

    queues = pieces.select("source", F.explode("queues").alias("queue")).distinct()
    return missing.join(queues, "source").select("queue", "since", "until")


def piece() -> Column:
    """Return the number of the part that an event belongs to."""
    from pyspark.sql import functions as F

    return F.floor((F.col("sequence") - 1) / PIECE).alias("piece")
