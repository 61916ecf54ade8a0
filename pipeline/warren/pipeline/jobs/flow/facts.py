"""Counts of captured message events (published, delivered, acknowledged, ...) for each second, as partial sums that add
up in any order.

All numbers of the job `flow` are derived from sums over the events of a second; even the time for which messages
are unacknowledged is (column `held_micros` of the table `steps`). A continuous run therefore needs no state and no
watermark. It writes the sums of each micro-batch as rows, and readers add up the rows with the same key, so no
event is too late.
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
"""Number of rows, one for each key, that a Spark task collects before it emits them as partial sums. It limits the
task's memory."""

ROUTE_KEYS = ("by", "exchange", "routing_key", "queue")
ROUTE_COUNTS = ("delivered",)


def steps_of(events: DataFrame) -> DataFrame:
    """Return the table `steps`: counts of message events by second, by the side that captured them (`sdk` or `broker`),
    and by queue.

    A publish whose queue is unknown is counted by exchange and routing key instead, and the events of a consumer have a
    row for each consumer. `held_micros` adds, for each delivery, the microseconds until the end of the second, and
    subtracts the same for each acknowledgement or rejection. Together with the number of unacknowledged messages at the
    beginning of the second it gives the total time for which messages were unacknowledged.
    """
    return summed(event_shares(events), KEYS, COUNTS, MAXIMA)


def routes_of(events: DataFrame) -> DataFrame:
    """Return the table `routes`: for each exchange and routing key, the queues from which such messages were delivered.

    An SDK that captures a publish does not know to which queues the broker routes the message. The deliveries, which
    name queue, exchange and routing key, tell to which queues the publish is to be counted.
    """
    from pyspark.sql import functions as F

    delivered = events.where((F.col("event") == "delivered") & F.col("queue").isNotNull())
    return summed(delivered.select(*ROUTE_KEYS, F.lit(1).alias("delivered")), ROUTE_KEYS, ROUTE_COUNTS, ())


def event_shares(events: DataFrame) -> DataFrame:
    """Return one row for each captured event with its contribution to the columns of the table `steps`: mostly 0 or 1.
    An event without a valid time belongs to no step.

    Some columns are no counts. `held_micros` has the microseconds from a delivery until the end of the second, negative
    for an acknowledgement or rejection. `acknowledgements` has the time of an acknowledgement; equal times are later
    counted as one `basic.ack` of several messages.
    """
    from pyspark.sql import functions as F

    at = F.unix_micros("at")
    second = F.floor(at / MICROS)
    auto = F.coalesce(F.col("no_ack"), F.lit(False))
    is_published = F.col("event").isin("published", "returned")
    # A broker records the queue of a publish, and none if no queue accepted it; an SDK cannot know it. The default
    # exchange routes to the queue with the name of the routing key.
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
    return events.where(F.col("event").isin(*COUNTED_EVENTS) & ~of_broker & at.isNotNull()).select(
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
        # All acknowledgements with the same time are one acknowledgement of several messages.
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
    """Return the column "the broker dead-lettered or dropped the message, and no other event reports that it left the
    queue".

    Rejected and expired messages are excluded, because another event reports their rejection or expiry. Dead-lettering
    by the SDK is excluded because the SDK acknowledges the message.
    """
    from pyspark.sql import functions as F

    alone = ~F.coalesce(F.col("reason"), F.lit("")).isin("rejected", "expired")
    return F.col("event").isin("dead_lettered", "dropped") & (F.col("by") == "broker") & alone


def summed(
    rows: DataFrame, keys: tuple[str, ...], counts: tuple[str, ...], maxima: tuple[str, ...]
) -> DataFrame:
    """Return one row for each combination of values in the columns `keys` (a key), with the sums of the columns
    `counts` and the largest values of the columns `maxima`.

    In a continuous run several rows may have the same key. They are partial sums, which the reader of the table adds
    up.
    """
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
    """Yield batches of rows with the sums of the given batches: one row for each key or, after more than
    `MAX_HELD_ROWS` keys, several rows to be added up.

    :param keys: columns whose values together are a key
    :param counts: columns to sum; of `acknowledgements` the distinct values of each batch are counted instead
    :param maxima: columns of which the largest value is kept
    """
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
        # Distinct times are counted within a batch; a batch's end seldom divides the messages of one acknowledgement.
        fresh = grouped(pa.Table.from_batches([batch]), "count_distinct")
        held = fresh if held is None else grouped(pa.concat_tables([held, fresh]), "sum")
        if held.num_rows >= MAX_HELD_ROWS:
            yield from held.combine_chunks().to_batches()
            held = None
    if held is not None:
        yield from held.combine_chunks().to_batches()
