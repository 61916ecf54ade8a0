"""Sums of life-cycle events for each second: small rows that add up, in whatever order and however often they are cut.

Every number of the job comes from sums: counts, and for times held the sum of what is left of the second at each event. So a
continuous run needs no state and no watermark: each batch of events becomes partial sums, rows with the same key add
up, and nothing comes too late.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

MICROS = 1_000_000
KEYS = ("by", "queue", "exchange", "routing_key", "connection", "consumer", "second")
COUNTS = (
    "published",
    "published_bytes",
    "returned",
    "delivered",
    "redelivered",
    "auto_acked",
    "acked",
    "acknowledgements",
    "rejected",
    "requeued",
    "expired",
    "purged",
    "deleted",
    "dropped",
    "held_micros",
    "begun",
    "ended",
)
MAXIMA = ("prefetch", "stream")
MAX_HELD_ROWS = 50_000
"""Rows of partial sums that a task holds at most before it hands them on."""

ROUTE_KEYS = ("by", "exchange", "routing_key", "queue")
ROUTE_COUNTS = ("delivered",)


def steps_of(events: DataFrame) -> DataFrame:
    """Sums by second and: who told it, the queue, for publishes without a queue their address, for consumers which one.

    `held_micros` is what is left of the second at each delivery, minus the same at each settlement: with the number held
    at its beginning it gives the time for which messages were held.
    """
    return summed(event_shares(events), KEYS, COUNTS, MAXIMA)


def routes_of(events: DataFrame) -> DataFrame:
    """Into which queues an exchange and routing key led: deliveries tell it, publishes seen by an SDK cannot."""
    from pyspark.sql import functions as F

    delivered = events.where((F.col("event") == "delivered") & F.col("queue").isNotNull())
    return summed(delivered.select(*ROUTE_KEYS, F.lit(1).alias("delivered")), ROUTE_KEYS, ROUTE_COUNTS, ())


def event_shares(events: DataFrame) -> DataFrame:
    """One row an event, with its share in each sum."""
    from pyspark.sql import functions as F

    at = F.unix_micros("at")
    second = F.floor(at / MICROS)
    auto = F.coalesce(F.col("no_ack"), F.lit(False))
    is_published = F.col("event").isin("published", "returned")
    # A broker names the queue that a publish got into, and none if it got into none; an SDK cannot know. The default
    # exchange leads to the queue of that name.
    of_broker = is_published & (F.col("by") == "broker") & F.col("queue").isNull()
    queue = F.coalesce(F.col("queue"), F.when(is_published & (F.col("exchange") == ""), F.col("routing_key")))
    unnamed = is_published & queue.isNull()
    settled = F.col("event").isin("acked", "rejected", "requeued") & ~auto
    delivered = (F.col("event") == "delivered") & ~auto
    left = (second + 1) * MICROS - at

    def when(condition: Column, value: Column | None = None) -> Column:
        return F.when(condition, F.lit(1) if value is None else value).otherwise(0).cast("long")

    def event(name: str) -> Column:
        return when(F.col("event") == name)

    first = (F.col("event") == "published") & ~F.coalesce(F.col("redelivered"), F.lit(False))
    acked = (F.col("event") == "acked") & ~auto
    purged = F.col("event") == "purged"
    deleted = purged & (F.col("reason") == "deleted")
    return events.where(F.col("event").isin(*COUNTED_EVENTS) & ~of_broker).select(
        "by",
        queue.alias("queue"),
        F.when(unnamed, F.col("exchange")).alias("exchange"),
        F.when(unnamed, F.col("routing_key")).alias("routing_key"),
        F.when(~is_published, F.col("connection")).alias("connection"),
        F.when(~is_published, F.col("consumer")).alias("consumer"),
        second.alias("second"),
        when(first).alias("published"),
        when(first, F.coalesce(F.col("bytes"), F.lit(0))).alias("published_bytes"),
        event("returned").alias("returned"),
        event("delivered").alias("delivered"),
        when((F.col("event") == "delivered") & F.col("redelivered")).alias("redelivered"),
        when((F.col("event") == "delivered") & auto).alias("auto_acked"),
        when(acked).alias("acked"),
        # One acknowledgement settles all of one instant.
        F.when(acked, at).alias("acknowledgements"),
        event("rejected").alias("rejected"),
        event("requeued").alias("requeued"),
        event("expired").alias("expired"),
        when(purged).alias("purged"),
        when(deleted).alias("deleted"),
        when(dropped()).alias("dropped"),
        when(delivered | settled, F.when(delivered, left).otherwise(-left)).alias("held_micros"),
        event("consuming").alias("begun"),
        event("cancelled").alias("ended"),
        F.when(F.col("event") == "consuming", F.col("prefetch")).alias("prefetch"),
        F.when(F.col("stream"), 1).alias("stream"),
    )


COUNTED_EVENTS = (
    "published",
    "returned",
    "delivered",
    "acked",
    "rejected",
    "requeued",
    "expired",
    "dead_lettered",
    "dropped",
    "purged",
    "consuming",
    "cancelled",
)


def dropped() -> Column:
    """What left the queue with no other event: a rejected or expired message has one of its own before it is dead-lettered
    or dropped, and the SDK acknowledges what it has dead-lettered."""
    from pyspark.sql import functions as F

    alone = ~F.coalesce(F.col("reason"), F.lit("")).isin("rejected", "expired")
    return F.col("event").isin("dead_lettered", "dropped") & (F.col("by") == "broker") & alone


def summed(
    rows: DataFrame, keys: tuple[str, ...], counts: tuple[str, ...], maxima: tuple[str, ...]
) -> DataFrame:
    """Sums of the counts for each key; partial ones, which add up, in a continuous run."""
    from pyspark.sql import functions as F

    if not rows.isStreaming:
        return rows.groupBy(*keys).agg(
            *[
                (F.count_distinct(name) if name == "acknowledgements" else F.sum(name)).alias(name)
                for name in counts
            ],
            *[F.max(name).alias(name) for name in maxima],
        )

    def partial(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from partial_sums(batches, keys, counts, maxima)

    kinds = dict(rows.dtypes)
    schema = [f"`{name}` {kinds[name]}" for name in keys] + [
        f"`{name}` bigint" for name in (*counts, *maxima)
    ]
    return rows.mapInArrow(partial, ", ".join(schema))


def partial_sums(
    batches: Iterator[pa.RecordBatch],
    keys: tuple[str, ...],
    counts: tuple[str, ...],
    maxima: tuple[str, ...],
) -> Iterator[pa.RecordBatch]:
    """Each batch summed, and the sums summed, until they are many."""
    import pyarrow as pa

    names = [*keys, *counts, *maxima]

    def grouped(table: pa.Table, acknowledged: str) -> pa.Table:
        how = [(name, acknowledged if name == "acknowledgements" else "sum") for name in counts]
        wanted = [*how, *((name, "max") for name in maxima)]
        found = table.group_by(list(keys)).aggregate(wanted)
        columns = [found[name] for name in keys] + [
            found[f"{name}_{kind}"].cast(pa.int64()) for name, kind in wanted
        ]
        return pa.table(columns, names=names)

    held: pa.Table | None = None
    for batch in batches:
        if not batch.num_rows:
            continue
        # In one batch the instants are told apart; what an acknowledgement settled is seldom cut by its end.
        fresh = grouped(pa.Table.from_batches([batch]), "count_distinct")
        held = fresh if held is None else grouped(pa.concat_tables([held, fresh]), "sum")
        if held.num_rows >= MAX_HELD_ROWS:
            yield from held.combine_chunks().to_batches()
            held = None
    if held is not None:
        yield from held.combine_chunks().to_batches()
