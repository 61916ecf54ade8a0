"""What messages say about orders, and what that comes to: the rules of the job, each written once.

Facts come at least once and in any order. Folding them is idempotent and commutative (the earliest of two times, said or
not said), so that a repeated message changes nothing and any number of partial rows of one order fold to the same.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

KINDS = {
    "order_placed": "placed",
    "order_paid": "paid",
    "order_cancelled": "cancelled",
    "cancel_order": "cancelled",
    "order_refunded": "refunded",
}
"""What a message says, by its property `type`. Others are counted and left alone."""

FIELDS = "order_id STRING, placed_at STRING, paid_at STRING"
"""What is read from a message's JSON body. A message about an order carries `order_id`; `order_placed` its
`placed_at`, `order_paid` its `paid_at`: ISO 8601, in UTC where no zone is written."""

TIMES = ("placed_at", "paid_at")
FLAGS = ("placed", "paid", "cancelled", "refunded")

OUTCOMES = ("paid_in_time", "paid_late", "cancelled")
CONTRADICTIONS = {
    "open": "placed, and neither paid nor cancelled",
    "paid_and_cancelled": "paid and cancelled, and not refunded",
    "refunded_not_cancelled": "paid and refunded, but never cancelled",
    "refunded_not_paid": "refunded, but never paid",
    "not_placed": "paid, cancelled or refunded, but never placed",
}
"""What an order must not be once everything has settled, and what it says."""


def events_of(messages: DataFrame) -> DataFrame:
    """One row a message, with what it says about which order."""
    from pyspark.sql import functions as F

    body = F.from_json(F.col("body").cast("string"), FIELDS)
    kinds = F.create_map(*[F.lit(word) for pair in KINDS.items() for word in pair])
    kind = kinds[F.col("type")]
    return messages.select(
        "queue",
        "offset",
        "message_id",
        "type",
        kind.alias("kind"),
        body["order_id"].alias("order_id"),
        F.when(kind == "placed", body["placed_at"].cast("timestamp")).alias("placed_at"),
        F.when(kind == "paid", body["paid_at"].cast("timestamp")).alias("paid_at"),
        "exchange",
        "routing_key",
        "redelivered",
        F.col("timestamp").alias("sent_at"),
    )


def facts_of(events: DataFrame) -> DataFrame:
    """One row a fact: which order, and what is said of it."""
    from pyspark.sql import functions as F

    known = events.where(F.col("kind").isNotNull() & F.col("order_id").isNotNull())
    return known.select("order_id", *TIMES, *[(F.col("kind") == flag).alias(flag) for flag in FLAGS])


def unreadable() -> Column:
    """Whether a message of `events_of` does not say what its type has to: the order, and the time of what happened."""
    from pyspark.sql import functions as F

    timeless = [(F.col("kind") == kind) & F.col(f"{kind}_at").isNull() for kind in ("placed", "paid")]
    return F.col("kind").isNotNull() & (F.col("order_id").isNull() | timeless[0] | timeless[1])


def merged_facts(facts: DataFrame) -> DataFrame:
    """One row an order: all that was said about it."""
    from pyspark.sql import functions as F

    return facts.groupBy("order_id").agg(
        *[F.min(time).alias(time) for time in TIMES], *[F.max(flag).alias(flag) for flag in FLAGS]
    )


def with_outcome(orders: DataFrame, timeout: timedelta) -> DataFrame:
    """With `delay_seconds`, the `outcome`, and whether the orders' own times mean another one."""
    from pyspark.sql import functions as F

    delay = (F.unix_micros("paid_at") - F.unix_micros("placed_at")) / 1_000_000
    in_time = F.col("delay_seconds") <= timeout.total_seconds()
    otherwise = ((F.col("outcome") == "paid_in_time") & ~in_time) | (
        (F.col("outcome") == "paid_late") & in_time
    )
    return (
        orders.withColumn("delay_seconds", delay)
        .withColumn("outcome", outcome())
        .withColumn("decided_otherwise", F.coalesce(otherwise, F.lit(False)))
    )


def outcome() -> Column:
    """What the facts about an order come to: one of `OUTCOMES`, or of `CONTRADICTIONS`."""
    from pyspark.sql import functions as F

    placed, paid, cancelled, refunded = (F.col(flag) for flag in FLAGS)
    return (
        F.when(~placed, "not_placed")
        .when(paid & cancelled & refunded, "paid_late")
        .when(paid & refunded, "refunded_not_cancelled")
        .when(paid & cancelled, "paid_and_cancelled")
        .when(paid, "paid_in_time")
        .when(refunded, "refunded_not_paid")
        .when(cancelled, "cancelled")
        .otherwise("open")
    )
