"""Findings of the audit: messages that were lost, duplicated, reordered or late. A loss counts as unknown if captured
events of that time are missing, because the message may have been handled.
"""

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
    "lost": "no event shows that they were handled, dead-lettered, dropped or returned",
    "duplicated": "acknowledged more than once in one queue",
    "reordered": "delivered after a message that was published after it",
    "late": "acknowledged later than the threshold",
    "unknown": "lost, or its events are missing: capture has a gap where it should appear",
}


OPTIONAL_COLUMNS = {
    "place": "string",
    "since": "timestamp",
    "until": "timestamp",
    "times": "bigint",
    "seconds": "double",
}
"""Columns of the table `findings`, with their types, that only some kinds of findings fill; null in the others."""


def findings_of(
    messages: DataFrame, unobserved: DataFrame | None, rules: Rules, horizon: Column, fates: Collection[str]
) -> DataFrame:
    """Return the table `findings`: one row for each finding, with its kind (`finding`, a key of `KINDS`), message,
    queue, and details.

    :param messages: one row for each message and queue, with times, counts and outcome, from `outcomes.outcomes_of`
    :param unobserved: periods (`queue`, `since`, `until`) in which captured events are missing; None if none are
    :param rules: parameters of the audit
    :param horizon: end of the time that is judged; events about later messages may not have been captured yet
    :param fates: outcomes (keys of `outcomes.FATES`) that occur among the messages
    """
    losses = [classify_losses(part, unobserved) for part in losses_of(messages, rules, horizon, fates)]
    parts = [*losses, duplicates_of(messages), reordered_of(messages, rules), late_of(messages, rules)]
    return reduce(lambda one, other: one.unionByName(other), [with_all_columns(part) for part in parts])


def with_all_columns(part: DataFrame) -> DataFrame:
    """Bring the findings of one kind to the columns of the table `findings`, with null where the kind has no value."""
    from pyspark.sql import functions as F

    optional_columns = [
        F.col(name) if name in part.columns else F.lit(None).cast(kind).alias(name)
        for name, kind in OPTIONAL_COLUMNS.items()
    ]
    return part.select("finding", *MESSAGE_COLUMNS, *optional_columns)


def classify_losses(lost: DataFrame, unobserved: DataFrame | None) -> DataFrame:
    """Add the column `finding` to lost messages: `unknown` if captured events of the queue are missing in the period of
    the loss, so that the message may not be lost at all; else `lost`.

    :param unobserved: periods (`queue`, `since`, `until`) in which captured events are missing; None if none are
    """
    from pyspark.sql import functions as F

    if unobserved is None:
        return lost.withColumn("finding", F.lit("lost"))
    hidden = covered_by_gaps(lost, unobserved).withColumn("hidden", F.lit(True))
    known = F.when(F.col("hidden"), "unknown").otherwise("lost")
    return lost.join(hidden, ["message_id", "queue"], "left").withColumn("finding", known)


def covered_by_gaps(lost: DataFrame, gaps: DataFrame) -> DataFrame:
    """Return message id and queue of the losses in whose period captured events of the same queue are missing.

    :param lost: losses with their times `since` and `until`
    :param gaps: periods (`queue`, `since`, `until`) in which events are missing, from `capture_gaps.unobserved_of`
    """
    from pyspark.sql import functions as F

    def minutes(rows: DataFrame) -> DataFrame:
        """Repeat each row for every minute from `since` to `until`, so that overlapping periods can be found by an
        equi-join.
        """
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
    """Swap `since` and `until` in rows where `since` is later because two clocks disagree; a null `since` stays
    null.
    """
    from pyspark.sql import functions as F

    known = F.col("since").isNotNull()
    ends = {"since": F.when(known, F.least("since", "until")), "until": F.greatest("since", "until")}
    return spans.withColumns(ends)


def duplicates_of(messages: DataFrame) -> DataFrame:
    """Return messages that were processed more than once in one queue; `times` is how often.

    A message is a duplicate if it has more acknowledgements than expected: one for each attempt of a retry, and one for
    each dead-lettering by the SDK, which publishes a copy and acknowledges the original. With automatic
    acknowledgement, deliveries are counted instead.
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
    """Return messages that were delivered for the first time after a message that had been published after them.

    Only messages of the same publishing connection, exchange, routing key and queue are compared. Their order of
    delivery is taken from the events of one source: the broker for a queue, or the application's process for a
    consumer. Left out are redeliveries, messages that were published again (after a lost connection, or for a retry),
    and dead letters.

    :param messages: one row for each message and queue, with times, counts and outcome, from `outcomes.outcomes_of`
    :param rules: parameters of the audit, of which `unordered` is used
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
    """Return messages that took longer than `rules.late` from publication to acknowledgement; `seconds` is the time
    they took.

    With automatic acknowledgement, the time until delivery counts. A dead letter is not judged in the queue that it was
    dead-lettered to.
    """
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
