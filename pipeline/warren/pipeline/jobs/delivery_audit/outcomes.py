"""Outcome of each message in each queue, derived from the counts and times of its captured events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from warren.core import capture_events as event

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

FATES = {
    "acknowledged": "acknowledged",
    "handed_over": "delivered with automatic acknowledgement",
    "dead_lettered": "dead-lettered",
    "expired": "expired",
    "rejected": "rejected",
    "dropped": "dropped by a limit of its queue",
    "purged": "purged, or deleted with its queue",
    "streamed": "stored in a stream",
    "in_hand": "delivered, without a captured outcome",
    "waiting": "in a queue, not delivered",
    "returned": "returned to the publisher",
    "unroutable": "accepted by no queue, and not returned",
    "refused": "refused by the broker",
    "nowhere": "published, and not seen again",
}
"""Outcomes of a message in a queue, with their descriptions, the best first. A message that is `waiting` or `nowhere`
may be lost; the module `losses` decides that."""


def outcomes_of(facts: DataFrame, events: DataFrame) -> DataFrame:
    """Return the table `messages`: one row for each message and queue, with times, counts and outcome.

    A message that reached no queue has one row with a null `queue`. If both an application and the broker captured an
    event, its time is the application's, because latency is measured between applications.

    :param facts: counts and earliest times of each message's events, from `facts_of`; messages without an id cannot be
        distinguished and must be left out
    :param events: all events, from which purges of queues are taken
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    publications = facts.where(F.col("queue").isNull()).select(
        "message_id",
        "sent",
        F.col("taken").alias("unrouted"),
        *[
            F.col(name).alias(f"{name}_told")
            for name in ("sends", "confirmed_at", "nacks", "returns", "reason", "last_at")
        ],
    )
    stays = facts.where(F.col("queue").isNotNull()).drop("sent", "sends", "confirmed_at", "nacks", "returns")
    both = stays.join(publications, "message_id", "full")
    # An arrival without a connection is that of a dead letter, which is not a publication.
    arrived = F.when(F.col("taken.connection").isNotNull(), F.col("taken"))
    first = F.min(arrived).over(Window.partitionBy("message_id"))
    with_origin = both.withColumn("origin", F.coalesce("sent", first, "unrouted")).join(
        purges_of(events), "queue", "left"
    )
    return with_origin.select(
        "message_id",
        "queue",
        F.col("origin.at").alias("published_at"),
        F.col("origin.source").alias("publisher"),
        F.col("origin.connection").alias("connection"),
        F.col("origin.sequence").alias("publication"),
        F.col("origin.exchange").alias("exchange"),
        F.col("origin.routing_key").alias("routing_key"),
        F.coalesce("sends_told", F.lit(0)).alias("sends"),
        F.col("confirmed_at_told").alias("confirmed_at"),
        F.col("taken"),
        F.coalesce("first_sdk", "first_broker")["at"].alias("delivered_at"),
        F.least("acked_at_sdk", "acked_at_broker").alias("acked_at"),
        "first_sdk",
        "first_broker",
        larger_count("deliveries").alias("deliveries"),
        larger_count("redeliveries").alias("redeliveries"),
        larger_count("acks").alias("acks"),
        larger_count("automatic").alias("automatic"),
        larger_count("rejects").alias("rejects"),
        *[F.coalesce(name, F.lit(0)).alias(name) for name in COUNTS],
        is_stream().alias("stream"),
        F.greatest(F.size("attempts"), F.lit(1)).alias("attempts"),
        F.coalesce("reason", "reason_told").alias("reason"),
        fate().alias("fate"),
        F.greatest("last_at", "last_at_told").alias("last_at"),
    )


def purges_of(events: DataFrame) -> DataFrame:
    """Return one row for each queue that was purged or deleted, with the time at which it last was (`purged_at`)."""
    from pyspark.sql import functions as F

    purges = events.where((F.col("event") == event.PURGED) & F.col("queue").isNotNull())
    return purges.groupBy("queue").agg(F.max("at").alias("purged_at"))


COUNTS = (
    "deliveries_sdk", "acks_sdk", "dead_letters_sdk", "dead_letters_broker", "expiries", "requeues",
)  # fmt: skip


def larger_count(name: str) -> Column:
    """Return the larger of the counts that the application's and the broker's events give; one of the two may have
    begun to capture events later.

    :param name: name of both counts without its end `_sdk` or `_broker`
    """
    from pyspark.sql import functions as F

    return F.coalesce(F.greatest(f"{name}_sdk", f"{name}_broker"), F.lit(0))


def is_stream() -> Column:
    """Return the column "the queue is a stream"; false if it is unknown."""
    from pyspark.sql import functions as F

    return F.coalesce("stream", F.lit(False))


def fate() -> Column:
    """Return the column with the outcome of a message in a queue: a key of `FATES`.

    The SDK dead-letters a message by publishing a copy and acknowledging the original. A message is therefore
    `acknowledged` only if it has more acknowledgements than dead-letterings by the SDK. Such a message is
    `acknowledged` even if the broker has dead-lettered it as well: it must have been delivered again.
    """
    from pyspark.sql import functions as F

    def any_of(*names: str) -> Column:
        return sum((F.coalesce(name, F.lit(0)) for name in names), F.lit(0)) > 0

    return (
        F.when(is_stream(), "streamed")
        .when(larger_count("acks") > F.coalesce("dead_letters_sdk", F.lit(0)), "acknowledged")
        .when(any_of("dead_letters_sdk", "dead_letters_broker"), "dead_lettered")
        .when(any_of("expiries"), "expired")
        .when(any_of("rejects_sdk", "rejects_broker"), "rejected")
        .when(any_of("drops"), "dropped")
        .when(any_of("automatic_sdk", "automatic_broker"), "handed_over")
        .when(any_of("deliveries_sdk", "deliveries_broker"), "in_hand")
        .when(F.col("taken.at") <= F.col("purged_at"), "purged")
        .when(F.col("queue").isNotNull(), "waiting")
        .when(any_of("returns_told"), "returned")
        .when(any_of("nacks_told") & F.col("confirmed_at_told").isNull(), "refused")
        .when(F.col("unrouted.reason") == "refused", "refused")
        .when(F.col("unrouted.reason") == "duplicate", "dropped")
        .when(F.col("unrouted").isNotNull(), "unroutable")
        .otherwise("nowhere")
    )
