"""Which messages are lost: published, without an end that anybody told, and passed by others on their way.

That a message was not seen proves nothing while it may wait. What proves it is order: between one publisher and one queue,
over one exchange with one routing key, messages do not overtake each other. A message is lost to a queue

- if this queue had got messages of the same exchange and routing key before it was published, and one that the same
  connection published after it has come through (`on the way`), or
- if the broker told that the queue took it, and the queue has delivered one that it took later (`in the queue`), or
- if the broker handed it over with automatic acknowledgement to a consumer that tells what it gets, and did not tell of
  this one (`to the consumer`), or
- if such a consumer got it, tells when it is done with one, and did not tell so of this one (`at the consumer`), or
- if the broker told that no queue took it, and it did not go back to its publisher (`no queue`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from warren.pipeline.jobs.delivery_audit.order import with_best_before

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

PLACES = {
    "on the way": "between publisher and consumer",
    "in the queue": "in a queue that had taken them",
    "to the consumer": "between the broker and a consumer with automatic acknowledgement",
    "at the consumer": "at a consumer with automatic acknowledgement that did not finish",
    "no queue": "at an exchange from which no queue took them",
}
WAY = ("publisher", "connection", "exchange", "routing_key", "queue")
ABOUT = ("message_id", "queue", "exchange", "routing_key", "publisher", "published_at", "confirmed_at")


@dataclass(frozen=True)
class Rules:
    """What a judgement depends on.

    :param settle: nothing is judged by what happened in the last so long of what was captured: the rest of the story may
        be on its way
    :param late: later than this after its publication a message is late
    :param unordered: exchanges and queues in which messages may overtake each other: delays, priorities, headers
    """

    settle: timedelta
    late: timedelta
    unordered: tuple[str, ...] = ()


def losses_of(messages: DataFrame, rules: Rules, horizon: Column, fates: Collection[str]) -> list[DataFrame]:
    """Parts, with one row a lost message and queue: `place`, and the times between which it was lost, `since` and `until`.

    :param horizon: the last time that counts
    :param fates: those that there are: what needs no question is not asked, which with all well spares most of the work
    """
    parts = []
    if "nowhere" in fates:
        parts.append(on_the_way(messages, rules, horizon))
    if "waiting" in fates:
        parts.append(in_the_queue(messages, rules, horizon))
    if "handed_over" in fates:
        parts += [to_the_consumer(messages, rules, horizon), at_the_consumer(messages, rules, horizon)]
    if "unroutable" in fates:
        parts.append(without_queue(messages))
    return parts


def on_the_way(messages: DataFrame, rules: Rules, horizon: Column) -> DataFrame:
    from pyspark.sql import functions as F

    ordered = ~F.col("exchange").isin(list(rules.unordered)) & ~F.col("queue").isin(list(rules.unordered))
    came = messages.where(
        F.col("queue").isNotNull() & F.col("published_at").isNotNull() & ordered
    ).withColumn("came_at", F.least("delivered_at", "taken.at"))
    routes = came.groupBy("exchange", "routing_key", "queue").agg(F.min("published_at").alias("open_since"))
    missing = messages.where((F.col("fate") == "nowhere") & (F.col("published_at") <= horizon)).drop("queue")
    asked = missing.join(routes, ["exchange", "routing_key"]).where(
        F.col("open_since") < F.col("published_at")
    )
    return overtaken(asked, came, WAY, "publication", "published_at", "came_at", horizon).withColumn(
        "place", F.lit("on the way")
    )


def in_the_queue(messages: DataFrame, rules: Rules, horizon: Column) -> DataFrame:
    from pyspark.sql import functions as F

    taken = messages.where(
        F.col("taken").isNotNull() & F.col("queue").isNotNull() & ~F.col("queue").isin(list(rules.unordered))
    ).select("*", F.col("taken.source").alias("broker"), F.col("taken.sequence").alias("arrival"), "taken.at")
    asked = taken.where((F.col("fate") == "waiting") & (F.col("at") <= horizon))
    came = taken.where(~F.coalesce(F.coalesce("first_broker", "first_sdk")["redelivered"], F.lit(False)))
    return overtaken(asked, came, ("broker", "queue"), "arrival", "at", "delivered_at", horizon).withColumn(
        "place", F.lit("in the queue")
    )


def overtaken(
    asked: DataFrame,
    came: DataFrame,
    way: tuple[str, ...],
    place: str,
    since: str,
    came_at: str,
    horizon: Column,
) -> DataFrame:
    """The rows of `asked` that something came after which began later on the same way."""
    from pyspark.sql import functions as F

    def steps(rows: DataFrame, at: Column, *, asks: bool) -> DataFrame:
        return rows.select(
            *ABOUT,
            *[F.coalesce(name, F.lit("")).alias(f"way_{name}") for name in way],
            F.col(since).alias("since"),
            (-F.col(place)).alias("step"),
            (-F.unix_micros(at)).alias("came"),
            F.lit(asks).alias("asks"),
        )

    keys = [f"way_{name}" for name in way]
    questions = steps(asked, F.lit(None).cast("timestamp"), asks=True)
    answers = steps(came, F.col(came_at), asks=False).join(
        questions.select(*keys).distinct(), keys, "left_semi"
    )
    judged = with_best_before(questions.unionByName(answers), keys, "step", "came", "earliest")
    until = F.timestamp_micros(-F.col("earliest"))
    return judged.where("asks").select(*ABOUT, "since", until.alias("until")).where(F.col("until") <= horizon)


def to_the_consumer(messages: DataFrame, rules: Rules, horizon: Column) -> DataFrame:
    """Handed over by the broker with automatic acknowledgement, and not told of by a consumer that tells of others."""
    from pyspark.sql import functions as F

    received = messages.where(F.col("deliveries_sdk") > 0).select(consumer().alias("of")).distinct()
    unseen = messages.where((F.col("fate") == "handed_over") & (F.col("deliveries_sdk") == 0))
    return unfinished(unseen, received, rules, horizon).withColumn("place", F.lit("to the consumer"))


def at_the_consumer(messages: DataFrame, rules: Rules, horizon: Column) -> DataFrame:
    """Received with automatic acknowledgement, and not finished by a consumer that tells what it has finished."""
    from pyspark.sql import functions as F

    ends = (F.col("acks_sdk") > 0) & (F.col("automatic") > 0)
    finishing = messages.where(ends).select(consumer().alias("of")).distinct()
    begun = messages.where((F.col("fate") == "handed_over") & (F.col("deliveries_sdk") > 0))
    return unfinished(begun, finishing, rules, horizon).withColumn("place", F.lit("at the consumer"))


def unfinished(given: DataFrame, telling: DataFrame, rules: Rules, horizon: Column) -> DataFrame:
    """What was given to those consumers, long enough ago."""
    from pyspark.sql import functions as F

    of_them = given.where(F.col("delivered_at") <= horizon).withColumn("of", consumer())
    until = F.col("delivered_at") + F.lit(rules.settle)
    return of_them.join(telling, "of", "left_semi").select(
        *ABOUT, F.col("delivered_at").alias("since"), until.alias("until")
    )


def consumer() -> Column:
    from pyspark.sql import functions as F

    return F.struct("queue", F.coalesce("first_sdk", "first_broker")["consumer"].alias("consumer"))


def without_queue(messages: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    at = F.col("published_at")
    return messages.where(F.col("fate") == "unroutable").select(
        *ABOUT, at.alias("since"), at.alias("until"), F.lit("no queue").alias("place")
    )
