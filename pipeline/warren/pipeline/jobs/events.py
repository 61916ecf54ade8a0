"""Life-cycle events of messages as rows: what the batches on a stream hold, each event once."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from warren.wire.events import KEYS, TYPE

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SQL_TYPES = {str: "STRING", int: "BIGINT", bool: "BOOLEAN"}

LATENESS = timedelta(minutes=1)
"""How much later than the newest one a batch may be that a continuous run still takes, and recognises as repeated."""


def events_of(messages: DataFrame, lateness: timedelta = LATENESS) -> DataFrame:
    """One row an event, from the columns of the data source `amqp`.

    `source` and `sequence` name an event: a source numbers what it tells from 1 on, so that a missing number is an event
    that capture lost. Beside them `by` (`sdk` or `broker`), `app`, `captured_at` (the time of the first event of the same
    batch; a continuous run has its watermark on it), `at`, and what the event says (`warren.wire.events.KEYS`), null where
    it says nothing.

    A batch that came twice counts once. Messages of other types, and batches that cannot be read, are left out: the
    numbers of the latter are then missing.

    :param lateness: of a continuous run: a batch that is later than this is dropped, and its numbers are missing
    """
    from pyspark.sql import functions as F

    listed = F.posexplode("events").alias("place", "event")
    told = batches_of(messages, lateness).select("source", "by", "app", "first", "captured_at", listed)
    values = [F.col("event")[key].alias(key) for key in KEYS if key not in ("event", "at")]
    return told.select(
        "source",
        "by",
        "app",
        (F.col("first") + F.col("place")).alias("sequence"),
        "captured_at",
        F.col("event")["event"].alias("event"),
        F.timestamp_micros(F.col("event")["at"]).alias("at"),
        *values,
    )


def batches_of(messages: DataFrame, lateness: timedelta) -> DataFrame:
    """One row a batch, each once: its source, the number of its first event, and its events."""
    from pyspark.sql import functions as F

    of_type = messages.where(F.col("type") == TYPE)
    batches = of_type.select(
        header("source"),
        header("by"),
        F.col("app_id").alias("app"),
        header("sequence").try_cast("bigint").alias("first"),
        F.from_json(F.col("body").cast("string"), f"ARRAY<STRUCT<{fields()}>>").alias("events"),
    )
    readable = batches.where(
        F.col("source").isNotNull() & F.col("first").isNotNull() & (F.size("events") > 0)
    ).withColumn("captured_at", F.timestamp_micros(F.col("events")[0]["at"]))
    same = ["source", "first"]
    if not messages.isStreaming:
        return readable.dropDuplicates(same)
    seconds = f"{lateness.total_seconds():.3f} seconds"
    return readable.withWatermark("captured_at", seconds).dropDuplicatesWithinWatermark(same)


def header(name: str) -> Column:
    from pyspark.sql import functions as F

    return F.col("headers")[name].alias(name)


def fields() -> str:
    """The keys of an event as columns of Spark SQL."""
    return ", ".join(f"{key} {SQL_TYPES[kind]}" for key, kind in KEYS.items())
