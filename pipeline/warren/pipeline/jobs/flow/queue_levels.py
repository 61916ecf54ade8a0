"""Levels of queues and consumers (numbers of ready and unacknowledged messages) second by second, computed in Spark
from the table `steps`, which counts message events by second and queue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from warren.pipeline.jobs.flow.facts import COUNTS, KEYS, MAXIMA, MICROS, ROUTE_KEYS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, WindowSpec


def merge_partial_sums(steps: DataFrame) -> DataFrame:
    """Add up the rows of the table `steps` (counts of events by second and queue) that have the same key; each
    micro-batch of a continuous run may have written one.
    """
    from pyspark.sql import functions as F

    sums = [F.sum(name).alias(name) for name in COUNTS]
    return steps.groupBy(*KEYS).agg(*sums, *[F.max(name).alias(name) for name in MAXIMA])


def by_queue(steps: DataFrame, routes: DataFrame) -> DataFrame:
    """Return the counts of the table `steps` by queue, with only the broker's or only the SDKs' events for each queue.

    A publish that an SDK captured without its queue counts for every queue that the table `routes` lists for its
    exchange and routing key. If a broker captured a queue's events, those of the SDKs are left out, because both report
    the same messages.
    """
    from pyspark.sql import functions as F

    known = routes.select(*ROUTE_KEYS).distinct()
    address = [name for name in ROUTE_KEYS if name != "queue"]
    routed = steps.where("queue IS NULL AND exchange IS NOT NULL").drop("queue").join(known, address)
    rows = steps.where("queue IS NOT NULL").unionByName(routed)
    # "broker" sorts before "sdk".
    preferred_side = rows.groupBy("queue").agg(F.min("by").alias("by"))
    return rows.join(preferred_side, ["queue", "by"], "left_semi")


def observed_consumers(steps: DataFrame) -> DataFrame:
    """Return the rows of the table `steps` about consumers: for each consumer those that its SDK captured or, if there
    are none, those that the broker captured.

    The SDK's are preferred because for a broker a message in transit is already unacknowledged, so that it cannot see a
    consumer wait for the next one.
    """
    from pyspark.sql import functions as F

    consumer_key = ["queue", "connection", "consumer"]
    rows = steps.where("consumer IS NOT NULL AND queue IS NOT NULL").withColumn(
        "connection", F.coalesce("connection", F.lit(""))
    )
    # "sdk" sorts after "broker".
    preferred_side = rows.groupBy(*consumer_key).agg(F.max("by").alias("by"))
    return rows.join(preferred_side, [*consumer_key, "by"], "left_semi")


def unrouted(steps: DataFrame, routes: DataFrame) -> DataFrame:
    """Return the rows of the table `steps` with publishes whose queue is unknown: no delivery had their exchange and
    routing key.
    """
    address = [name for name in ROUTE_KEYS if name != "queue"]
    return steps.where("queue IS NULL AND exchange IS NOT NULL").join(routes, address, "left_anti")


def queue_levels(rows: DataFrame) -> DataFrame:
    """Return one row for each queue and second with events: the counts of the second, and the levels (numbers of ready
    and of unacknowledged messages) at its end.

    The level before the first event is unknown. It is taken to be the smallest one with which no later level is
    negative. The number of messages that a purge or a deletion removed is unknown too: the level is set to 0 at the end
    of that second.

    A stream keeps its messages after delivery: its column `stream` is true, and its levels are null.

    :param rows: counts by second and queue, from `by_queue`
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    sums = rows.groupBy("queue", "second").agg(
        F.min("by").alias("by"),
        *[F.sum(name).alias(name) for name in COUNTS],
        F.max("stream").alias("stream"),
    )
    until_now = Window.partitionBy("queue").orderBy("second").rowsBetween(Window.unboundedPreceding, 0)

    def level(change: Column, emptied: str, since: str) -> Column:
        """Return the column with the number of ready or of unacknowledged messages after a second: the sum of its
        changes since the queue was last emptied (purged or deleted) or, if it never was, since the first event.

        :param change: column with the change of the number in a second
        :param emptied: SQL condition that is true for a second in which the queue was emptied, as in `purged > 0`
        :param since: name of the column with the number of times that the queue was emptied so far, this second
            included; rows with the same value are added up
        """
        whole = Window.partitionBy("queue", since)
        after = whole.orderBy("second").rowsBetween(Window.unboundedPreceding, 0)
        return F.sum(F.when(F.expr(emptied), 0).otherwise(change)).over(after)

    found = (
        sums.withColumn("settled", F.col("acked") + F.col("rejected") + F.col("auto_acked"))
        .withColumn("purges", F.sum("purged").over(until_now))
        .withColumn("deletions", F.sum("deleted").over(until_now))
        .withColumn("ready", level(ready_change(), "purged > 0", "purges"))
        .withColumn("unacked", level(unacked_change(), "deleted > 0", "deletions"))
        .withColumn("ready_lift", initial_level("ready", Window.partitionBy("queue", "purges")))
        .withColumn("unacked_lift", initial_level("unacked", Window.partitionBy("queue", "deletions")))
        .withColumn(
            "began_with", F.expr("if(purges = 0, ready_lift, 0) + if(deletions = 0, unacked_lift, 0)")
        )
        .withColumn("ready", F.col("ready") + F.col("ready_lift"))
        .withColumn("unacked", F.col("unacked") + F.col("unacked_lift"))
    )
    is_stream = F.coalesce(F.max("stream").over(Window.partitionBy("queue")), F.lit(0)) == 1
    of_queues = {name: F.when(~F.col("stream"), F.col(name)) for name in ("ready", "unacked", "began_with")}
    return found.withColumn("stream", is_stream).withColumns(of_queues)


def initial_level(name: str, whole: WindowSpec) -> Column:
    """Return the column with the smallest initial number of messages with which the number never becomes negative.

    :param name: name of the column with the number of messages after each second, computed from an initial number of 0
    :param whole: window over all rows that share the initial number, such as those of one queue between two purges
    """
    from pyspark.sql import functions as F

    return F.greatest(-F.min(name).over(whole), F.lit(0))


def unacked_change() -> Column:
    """Return the column with the change of the number of unacknowledged messages in a second."""
    from pyspark.sql import functions as F

    return F.expr("delivered - auto_acked - acked - rejected - requeued")


def ready_change() -> Column:
    """Return the column with the change of the number of ready messages in a second."""
    from pyspark.sql import functions as F

    return F.expr("published - returned - expired - dropped - delivered + requeued")


def consumer_times(rows: DataFrame, end: int) -> DataFrame:
    """Return one row for each consumer: its counts, and in seconds its total time, its time with as many unacknowledged
    messages as the prefetch allows, and its time without an unacknowledged message.

    :param rows: counts of each consumer by second, from `observed_consumers`
    :param end: Unix time at which the captured period ends; the time of a consumer that was not cancelled ends there
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    consumer_key = ("queue", "connection", "consumer")
    sums = rows.groupBy(*consumer_key, "second").agg(
        F.min("by").alias("by"),
        *[F.sum(name).alias(name) for name in COUNTS],
        F.max("prefetch").alias("prefetch"),
    )
    order = Window.partitionBy(*consumer_key).orderBy("second")
    until_now = order.rowsBetween(Window.unboundedPreceding, 0)
    whole = Window.partitionBy(*consumer_key)
    gone = F.sum("ended").over(until_now) >= F.greatest(F.sum("begun").over(until_now), F.lit(1))
    following = F.when(gone, F.col("second") + 1).otherwise(
        F.coalesce(F.lead("second").over(order), F.lit(end))
    )
    levels = (
        sums.withColumn("change", unacked_change())
        .withColumn("after", F.sum("change").over(until_now))
        .withColumn("after", F.col("after") + initial_level("after", whole))
        .withColumn("before", F.col("after") - F.col("change"))
        .withColumn("window", F.max("prefetch").over(whole))
        .withColumns({"gone": gone, "following": following})
        .withColumn("lasts", F.col("following") - F.col("second"))
    )
    held = F.col("before") * MICROS + F.col("held_micros") + F.col("after") * (F.col("lasts") - 1) * MICROS
    return levels.groupBy(*consumer_key).agg(
        F.min("by").alias("by"),
        F.max("window").alias("prefetch"),
        F.sum("lasts").alias("seconds"),
        F.sum("delivered").alias("delivered"),
        F.sum(F.expr("acked + rejected + auto_acked")).alias("settled"),
        F.sum(F.expr("acked + rejected + requeued")).alias("put_down"),
        (F.sum(held) / MICROS).alias("held_seconds"),
        F.sum(F.when(F.col("after") <= 0, F.col("lasts")).otherwise(0)).alias("idle_seconds"),
        F.sum(
            F.when((F.col("window") > 0) & (F.col("after") >= F.col("window")), F.col("lasts")).otherwise(0)
        ).alias("full_seconds"),
        (~F.max_by("gone", "second")).alias("stays"),
    )
