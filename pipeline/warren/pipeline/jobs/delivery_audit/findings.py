"""What is wrong with which message: lost, duplicated, reordered, late; or unknown, where capture left something out."""

from __future__ import annotations

from collections.abc import Collection
from functools import reduce
from typing import TYPE_CHECKING

from warren.pipeline.jobs.delivery_audit.facts import SIDES
from warren.pipeline.jobs.delivery_audit.losses import MESSAGE_COLUMNS, Rules, in_order, losses_of
from warren.pipeline.jobs.delivery_audit.running_maximum import with_maximum_before

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

KINDS = {
    "lost": "no end was told, and others that came after it have passed",
    "duplicated": "acknowledged more than once in one queue",
    "reordered": "delivered after a message that was published after it",
    "late": "acknowledged later than the threshold",
    "unknown": "lost, or not told: capture left something out where it should have passed",
}


OPTIONAL_COLUMNS = {
    "place": "string",
    "since": "timestamp",
    "until": "timestamp",
    "times": "bigint",
    "seconds": "double",
}


def findings_of(
    messages: DataFrame, unobserved: DataFrame | None, rules: Rules, horizon: Column, fates: Collection[str]
) -> DataFrame:
    """One row a finding: `finding` (of `KINDS`), the message and queue, and what is known of the way.

    :param messages: as `lives.lives_of` gives them
    :param blind: `queue`, `since` and `until`: when something is missing of what was told of a queue; None if nothing is
    :param horizon: the last time that counts
    :param fates: those that there are among the messages
    """
    losses = [classify_losses(part, unobserved) for part in losses_of(messages, rules, horizon, fates)]
    parts = [*losses, duplicates_of(messages), reordered_of(messages, rules), late_of(messages, rules)]
    return reduce(lambda one, other: one.unionByName(other), [with_all_columns(part) for part in parts])


def with_all_columns(part: DataFrame) -> DataFrame:
    """With every column; null is what this kind does not tell."""
    from pyspark.sql import functions as F

    told = [
        F.col(name) if name in part.columns else F.lit(None).cast(kind).alias(name)
        for name, kind in OPTIONAL_COLUMNS.items()
    ]
    return part.select("finding", *MESSAGE_COLUMNS, *told)


def classify_losses(lost: DataFrame, unobserved: DataFrame | None) -> DataFrame:
    from pyspark.sql import functions as F

    if unobserved is None:
        return lost.withColumn("finding", F.lit("lost"))
    hidden = covered_by_gaps(lost, unobserved).withColumn("hidden", F.lit(True))
    known = F.when(F.col("hidden"), "unknown").otherwise("lost")
    return lost.join(hidden, ["message_id", "queue"], "left").withColumn("finding", known)


def covered_by_gaps(lost: DataFrame, gaps: DataFrame) -> DataFrame:
    """Message and queue of the losses at whose time something is missing of what a source told of this queue."""
    from pyspark.sql import functions as F

    def minutes(rows: DataFrame) -> DataFrame:
        """A row a minute that is touched, so that they can be joined by it."""
        begin, end = (F.date_trunc("minute", F.col(name)) for name in ("since", "until"))
        return rows.withColumn("minute", F.explode(F.sequence(begin, end, F.expr("INTERVAL 1 MINUTE"))))

    lost, gaps = ordered_times(lost), ordered_times(gaps)
    inner = gaps.where(F.col("since").isNotNull()).select("queue", "since", "until")
    silent = minutes(inner).withColumnsRenamed({"since": "silent_since", "until": "silent_until"})
    meets = (F.col("silent_since") <= F.col("until")) & (F.col("silent_until") >= F.col("since"))
    within = minutes(lost).join(silent, ["queue", "minute"]).where(meets)
    begun = gaps.where(F.col("since").isNull()).groupBy("queue").agg(F.max("until").alias("begun"))
    before = lost.join(begun, "queue").where(F.col("since") <= F.col("begun"))
    keys = ("message_id", "queue")
    return within.select(*keys).unionByName(before.select(*keys)).distinct()


def ordered_times(spans: DataFrame) -> DataFrame:
    """With the earlier end first: clocks that disagree, or are set back, tell the later one first; null stays null."""
    from pyspark.sql import functions as F

    known = F.col("since").isNotNull()
    ends = {"since": F.when(known, F.least("since", "until")), "until": F.greatest("since", "until")}
    return spans.withColumns(ends)


def duplicates_of(messages: DataFrame) -> DataFrame:
    """What was acknowledged more often than attempts and the SDK's dead-letterings account for; `times` in all.

    With automatic acknowledgement, where no end is told, being handed over counts.
    """
    from pyspark.sql import functions as F

    times = F.when(F.col("acks") > 0, F.col("acks")).otherwise(F.col("automatic"))
    allowed = F.col("attempts") + F.col("dead_letters_sdk")
    return (
        messages.where(F.col("queue").isNotNull() & ~F.col("stream"))
        .select(
            F.lit("duplicated").alias("finding"),
            *MESSAGE_COLUMNS,
            times.alias("times"),
            allowed.alias("allowed"),
        )
        .where(F.col("times") > F.col("allowed"))
        .drop("allowed")
    )


def reordered_of(messages: DataFrame, rules: Rules) -> DataFrame:
    """What was delivered for the first time when the same queue had already delivered something that the same connection
    published after it, to the same exchange with the same routing key.

    The order of deliveries is that in which one broker tells of a queue, or one process of a consumer. Left out: what
    comes as redelivered, what was published again (after a lost connection, or for a retry) and dead letters.
    """
    from pyspark.sql import functions as F

    here = ["publisher", "connection", "exchange", "routing_key", "queue"]
    seen = F.explode(F.array(*[F.struct(f"first_{side}.*", F.lit(side).alias("side")) for side in SIDES]))
    unmoved = (F.col("seen.exchange") == F.col("exchange")) & (
        F.col("seen.routing_key") == F.col("routing_key")
    )
    consumer = F.when(F.col("seen.side") == "sdk", F.concat_ws(" ", "seen.connection", "seen.consumer"))
    parts = [*map(F.col, here), F.col("seen.source"), consumer]
    way = F.array(*[F.coalesce(part, F.lit("")) for part in parts])
    deliveries = (
        messages.where(F.col("queue").isNotNull() & F.col("publication").isNotNull() & ~F.col("stream"))
        .where((F.col("sends") <= 1) & in_order(rules))
        .select("*", seen.alias("seen"))
        .where(F.col("seen.at").isNotNull() & ~F.coalesce("seen.redelivered", F.lit(False)) & unmoved)
        .select(
            *MESSAGE_COLUMNS,
            "publication",
            way.alias("way"),
            F.col("seen.sequence").alias("step"),
            F.col("seen.at").alias("until"),
        )
    )
    judged = with_maximum_before(deliveries, ["way"], "step", "publication", "newest")
    behind = judged.where(F.col("newest") > F.col("publication"))
    return (
        behind.groupBy(*MESSAGE_COLUMNS)
        .agg(F.min("until").alias("until"))
        .withColumn("finding", F.lit("reordered"))
    )


def late_of(messages: DataFrame, rules: Rules) -> DataFrame:
    """What took longer than allowed from its publication to its acknowledgement (to its delivery, if that is all that can
    be told); `seconds` says how long. Dead letters in the queue they went to are left out."""
    from pyspark.sql import functions as F

    ended = F.when(F.col("fate") == "acknowledged", F.col("acked_at")).when(
        F.col("fate") == "handed_over", F.col("delivered_at")
    )
    first = F.coalesce("first_sdk", "first_broker")
    unmoved = (first["exchange"] == F.col("exchange")) & (first["routing_key"] == F.col("routing_key"))
    seconds = (F.unix_micros(ended) - F.unix_micros("published_at")) / 1_000_000
    return (
        messages.where(F.coalesce(unmoved, F.lit(True)))
        .select(F.lit("late").alias("finding"), *MESSAGE_COLUMNS, seconds.alias("seconds"))
        .where(F.col("seconds") > rules.late.total_seconds())
    )
