"""Conversion of captured message events to rows. An application or broker that captures events (published, delivered,
acknowledged, ...) publishes them to a stream in batches, one message for each; each event becomes one row.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from warren.core.capture_events import EVENT_KEYS, MESSAGE_TYPE
from warren.pipeline.jobs.event_times import time_of_micros

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SQL_TYPES = {str: "STRING", int: "BIGINT", bool: "BOOLEAN"}


REMEMBER = timedelta(days=1)
"""Time for which a continuous run remembers a batch of events, to drop its repetition. A batch is published again if
the connection was lost before the broker confirmed it."""


def events_of(messages: DataFrame, remember: timedelta = REMEMBER) -> DataFrame:
    """Return one row for each captured message event, from messages with the columns of the data source `amqp`.

    `source` and `sequence` identify an event. A source (an application or broker that captures events) numbers its
    events from 1 on, so a missing number is an event that did not reach the stream. `by` is `sdk` or `broker`, `app`
    the name of the application, `captured_at` the time of the first event in the same batch, and `at` the event's own
    time. The other columns are the event's fields (`warren.core.capture_events.EVENT_KEYS`), null where it has none.

    A repeated batch counts once. Messages of other types are left out, and so are batches that cannot be read; the
    numbers of their events are then missing. In a continuous run neither order nor age of the messages matters: no
    event is too late.

    :param remember: for a continuous run, how long a batch is remembered; each needs a row of state
    """
    from pyspark.sql import functions as F

    listed = F.posexplode("events").alias("place", "event")
    events = batches_of(messages, remember).select("source", "by", "app", "first", "captured_at", listed)
    values = [F.col("event")[key].alias(key) for key in EVENT_KEYS if key not in ("event", "at")]
    return events.select(
        "source",
        "by",
        "app",
        (F.col("first") + F.col("place")).alias("sequence"),
        "captured_at",
        F.col("event")["event"].alias("event"),
        time_of_micros(F.col("event")["at"]).alias("at"),
        *values,
    )


def batches_of(messages: DataFrame, remember: timedelta) -> DataFrame:
    """Return one row for each batch of events, without repetitions: its source, the number of its first event, and its
    events.

    :param messages: messages with the columns of the data source `amqp`; each of the batches' type is one batch
    :param remember: for a continuous run, how long a batch is remembered in order to recognise a repetition
    """
    from pyspark.sql import functions as F

    of_type = messages.where(F.col("type") == MESSAGE_TYPE)
    batches = of_type.select(
        header("source"),
        header("by"),
        F.col("app_id").alias("app"),
        header("sequence").try_cast("bigint").alias("first"),
        F.from_json(F.col("body").cast("string"), f"ARRAY<STRUCT<{fields()}>>").alias("events"),
    )
    readable = batches.where(
        F.col("source").isNotNull() & F.col("first").isNotNull() & (F.size("events") > 0)
    ).withColumn("captured_at", time_of_micros(F.col("events")[0]["at"]))
    same = ["source", "first"]
    if not messages.isStreaming:
        return readable.dropDuplicates(same)
    seconds = f"{remember.total_seconds():.3f} seconds"
    # Spark drops rows behind the watermark, and the clocks of two sources may differ by any amount. The time of the
    # micro-batch, which Spark logs before it begins, is never behind.
    timed = readable.withColumn("taken_at", F.current_timestamp()).withWatermark("taken_at", seconds)
    return timed.dropDuplicatesWithinWatermark(same).drop("taken_at")


def header(name: str) -> Column:
    """Return a column called `name` with the value of the message header of that name."""
    from pyspark.sql import functions as F

    return F.col("headers")[name].alias(name)


def fields() -> str:
    """Return the fields of an event (`EVENT_KEYS`) as a column list of Spark SQL, with their types."""
    return ", ".join(f"{key} {SQL_TYPES[kind]}" for key, kind in EVENT_KEYS.items())
