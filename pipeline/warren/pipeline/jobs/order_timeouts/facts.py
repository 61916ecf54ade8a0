"""Facts about orders in messages (placed, paid, cancelled, refunded), and the rules that derive an order's outcome from
them.

Facts are delivered at least once and in any order. Merging the facts of an order is idempotent and commutative (the
earliest of two times, a logical or). A repeated message therefore changes nothing, and the order of the messages does
not matter.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from warren.pipeline.jobs.event_times import time_of_text

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

KINDS = {
    "order_placed": "placed",
    "order_paid": "paid",
    "order_cancelled": "cancelled",
    "cancel_order": "cancelled",
    "order_refunded": "refunded",
}
"""Fact that a message states, by its property `type`. Messages of other types are counted and ignored."""

FIELDS = "order_id STRING, placed_at STRING, paid_at STRING"
"""Fields that are read from a message's JSON body. Each message about an order has `order_id`; `order_placed` has
`placed_at`, `order_paid` has `paid_at`: ISO 8601, in UTC without a zone."""

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
"""States in which no order may remain after all messages about it have been processed, with their descriptions."""


def events_of(messages: DataFrame) -> DataFrame:
    """Return one row for each message, with the fact that it states about an order; null for messages of other
    types.
    """
    from pyspark.sql import functions as F

    body = F.from_json(F.col("body").cast("string"), FIELDS)
    kinds = F.create_map(*[F.lit(word) for pair in KINDS.items() for word in pair])
    kind = kinds[F.col("type")]
    order_id = body["order_id"]
    return messages.select(
        "queue",
        "offset",
        "message_id",
        "type",
        kind.alias("kind"),
        F.when(F.trim(order_id) != "", order_id).alias("order_id"),
        F.when(kind == "placed", time_of_text(body["placed_at"])).alias("placed_at"),
        F.when(kind == "paid", time_of_text(body["paid_at"])).alias("paid_at"),
        "exchange",
        "routing_key",
        "redelivered",
        F.col("timestamp").alias("sent_at"),
    )


def facts_of(events: DataFrame) -> DataFrame:
    """Return one row for each message that states a fact about an order (placed, paid, cancelled or refunded), with the
    order's id, times, and a flag for each kind of fact.
    """
    from pyspark.sql import functions as F

    known = events.where(F.col("kind").isNotNull() & F.col("order_id").isNotNull())
    return known.select("order_id", *TIMES, *[(F.col("kind") == flag).alias(flag) for flag in FLAGS])


def unreadable() -> Column:
    """Return the column "the message has a known type, and lacks the order id or the time that this type requires"."""
    from pyspark.sql import functions as F

    timeless = [(F.col("kind") == kind) & F.col(f"{kind}_at").isNull() for kind in ("placed", "paid")]
    return F.col("kind").isNotNull() & (F.col("order_id").isNull() | timeless[0] | timeless[1])


def merged_facts(facts: DataFrame) -> DataFrame:
    """Merge the facts of each order (placed, paid, cancelled, refunded): return one row for each order, with its
    earliest times and all flags.
    """
    from pyspark.sql import functions as F

    return facts.groupBy("order_id").agg(
        *[F.min(time).alias(time) for time in TIMES], *[F.max(flag).alias(flag) for flag in FLAGS]
    )


def with_outcome(orders: DataFrame, timeout: timedelta) -> DataFrame:
    """Add the columns `delay_seconds` (from placing to payment), `outcome`, and `decided_otherwise`.

    `outcome` follows from the messages about an order. `decided_otherwise` is true if it contradicts the order's times:
    paid in time although the delay exceeds the timeout, or paid late although it does not.

    :param orders: one row for each order with its times and flags, from `merged_facts`
    :param timeout: payment timeout that was in effect
    """
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
    """Return the column with the outcome that the flags of an order imply: one of `OUTCOMES`, or a key of
    `CONTRADICTIONS`.
    """
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
