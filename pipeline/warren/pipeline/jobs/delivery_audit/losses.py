"""Detection of lost messages: published, without a captured outcome, and overtaken by later messages.

A message without an outcome may still be waiting. Its loss is proven only by a later message that has arrived, because
between one publisher and one queue, over one exchange with one routing key, no message overtakes another. A message is
lost to a queue in five cases, each named by the place of the loss (a key of `PLACES`):

- `on the way`: the queue had received messages of the same exchange and routing key before this one was published, and
  has received one that the same connection published later.
- `in the queue`: the broker reported that the queue accepted the message, and the queue has delivered one that it
  accepted later.
- `to the consumer`: the broker delivered it with automatic acknowledgement, and the consumer, which reports its
  deliveries, did not report this one.
- `at the consumer`: such a consumer received it and did not report that it was handled, although it reports that for
  other messages.
- `no queue`: the broker reported that no queue accepted it, and it was not returned to its publisher.

A message in a stream is never lost because nobody read it: a reader begins where it wants, and may skip messages.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta
from functools import reduce
from typing import TYPE_CHECKING

from warren.pipeline.jobs.delivery_audit.running_maximum import with_maximum_before

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

PLACES = {
    "on the way": "between publisher and consumer",
    "in the queue": "in a queue that had accepted them",
    "to the consumer": "between the broker and a consumer with automatic acknowledgement",
    "at the consumer": "at a consumer with automatic acknowledgement that did not finish",
    "no queue": "at an exchange without a matching binding",
}
MESSAGE_COLUMNS = (
    "message_id",
    "queue",
    "exchange",
    "routing_key",
    "publisher",
    "published_at",
    "confirmed_at",
)


@dataclass(frozen=True)
class Rules:
    """Parameters of the audit.

    :param settle: length of the last part of the captured time, which is not judged because more events may follow
    :param late: time from publication to acknowledgement after which a message is late
    :param unordered: exchanges and queues in which messages may overtake each other, because of delays, priorities, or
        routing by headers
    """

    settle: timedelta
    late: timedelta
    unordered: tuple[str, ...] = ()


def losses_of(messages: DataFrame, rules: Rules, horizon: Column, fates: Collection[str]) -> list[DataFrame]:
    """Return frames with one row for each lost message and queue: the place of the loss (a key of `PLACES`), and the
    times `since` and `until` between which it happened.

    :param messages: one row for each message and queue, with times, counts and outcome, from `outcomes.outcomes_of`
    :param rules: parameters of the audit
    :param horizon: end of the time that is judged; events about later messages may not have been captured yet
    :param fates: outcomes that occur among the messages; a check for an outcome that does not occur is skipped, which
        saves most of the work when all is well
    """
    steps = []
    if "nowhere" in fates:
        steps.append(on_the_way(messages, rules, horizon))
    if "waiting" in fates:
        steps.append(in_the_queue(messages, rules, horizon))
    parts = [overtaken(reduce(lambda one, other: one.unionByName(other), steps), horizon)] if steps else []
    if "handed_over" in fates:
        parts.append(handed_over(messages, rules, horizon))
    if "unroutable" in fates:
        parts.append(without_queue(messages))
    return parts


def on_the_way(messages: DataFrame, rules: Rules, horizon: Column) -> DataFrame:
    """Return the rows from which `overtaken` finds messages lost between their publisher and a queue.

    These are the messages of which no event was captured after their publication, and the messages that arrived in a
    queue. The former have one row for each queue that had received messages of the same exchange and routing key
    before.

    :param messages: one row for each message and queue, with times, counts and outcome, from `outcomes.outcomes_of`
    :param horizon: end of the time that is judged; a message published later is not looked for
    """
    from pyspark.sql import functions as F

    came = messages.where(
        F.col("queue").isNotNull() & F.col("published_at").isNotNull() & ~F.col("stream") & in_order(rules)
    ).withColumn("came_at", F.least("delivered_at", "taken.at"))
    routes = came.groupBy("exchange", "routing_key", "queue").agg(F.min("published_at").alias("open_since"))
    missing = messages.where((F.col("fate") == "nowhere") & (F.col("published_at") <= horizon)).drop("queue")
    to_each = missing.join(routes, ["exchange", "routing_key"])
    asked = to_each.where(F.col("open_since") < F.col("published_at"))
    place = F.lit("on the way")
    way = F.array(place, "publisher", "connection", "exchange", "routing_key", "queue")
    return steps_of(
        asked.withColumn("came_at", F.lit(None).cast("timestamp")),
        came,
        place,
        way,
        "publication",
        "published_at",
    )


def in_the_queue(messages: DataFrame, rules: Rules, horizon: Column) -> DataFrame:
    """Return the rows from which `overtaken` finds messages lost in a queue.

    These are the messages that the broker reported as accepted by a queue and that were not delivered, and the
    delivered ones.

    :param messages: one row for each message and queue, with times, counts and outcome, from `outcomes.outcomes_of`
    :param horizon: end of the time that is judged; a message accepted later is not looked for
    """
    from pyspark.sql import functions as F

    here = F.col("taken").isNotNull() & F.col("queue").isNotNull() & ~F.col("stream")
    taken = messages.where(here & in_order(rules)).select(
        "*",
        F.col("taken.source").alias("broker"),
        F.col("taken.sequence").alias("arrival"),
        F.col("taken.at").alias("taken_at"),
        F.col("delivered_at").alias("came_at"),
    )
    asked = taken.where((F.col("fate") == "waiting") & (F.col("taken_at") <= horizon))
    again = F.coalesce("first_broker", "first_sdk")["redelivered"]
    came = taken.where(F.col("came_at").isNotNull() & ~F.coalesce(again, F.lit(False)))
    place = F.lit("in the queue")
    return steps_of(asked, came, place, F.array(place, "broker", "queue"), "arrival", "taken_at")


def in_order(rules: Rules) -> Column:
    """Return the column "messages of this exchange and queue keep their order": neither is listed in
    `rules.unordered`.
    """
    from pyspark.sql import functions as F

    unordered = list(rules.unordered)
    return ~F.coalesce(F.col("exchange").isin(unordered) | F.col("queue").isin(unordered), F.lit(False))


def steps_of(
    asked: DataFrame, came: DataFrame, place: Column, way: Column, number: str, since: str
) -> DataFrame:
    """Return missing and arrived messages as rows with the same columns. From them `overtaken` finds the lost messages:
    those after which another one has arrived in the same order.

    It needs the earliest arrival among the messages *after* a missing one, but computes a running maximum over the rows
    *before* a row. Positions (`step`) and times of arrival (`came`) are therefore negated.

    :param asked: messages that are missing (column `asks` true in the result)
    :param came: messages that arrived, with the time `came_at`
    :param place: place of the possible loss, a key of `PLACES`
    :param way: array column; messages with the same values, such as connection, exchange, routing key and queue, keep
        their order
    :param number: name of the column with a message's position in that order
    :param since: name of the column with the time from which the message is missing
    """
    from pyspark.sql import functions as F

    def steps(rows: DataFrame, *, asks: bool) -> DataFrame:
        return rows.select(
            *MESSAGE_COLUMNS,
            place.alias("place"),
            F.transform(way, lambda name: F.coalesce(name, F.lit(""))).alias("way"),
            F.col(since).alias("since"),
            (-F.col(number)).alias("step"),
            (-F.unix_micros("came_at")).alias("came"),
            F.lit(asks).alias("asks"),
        )

    questions = steps(asked, asks=True)
    return questions.unionByName(
        steps(came, asks=False).join(questions.select("way").distinct(), "way", "left_semi")
    )


def overtaken(steps: DataFrame, horizon: Column) -> DataFrame:
    """Return the missing messages that are lost: a message after them in the same order has arrived.

    :param steps: missing and arrived messages with their negated positions and times of arrival, from `steps_of`
    :param horizon: latest time of such an arrival; with a later one the message is not reported as lost yet
    """
    from pyspark.sql import functions as F

    judged = with_maximum_before(steps, ["way"], "step", "came", "earliest")
    until = F.timestamp_micros(-F.col("earliest"))
    return judged.where(F.col("asks") & (until <= horizon)).select(
        *MESSAGE_COLUMNS, "since", until.alias("until"), "place"
    )


def handed_over(messages: DataFrame, rules: Rules, horizon: Column) -> DataFrame:
    """Return messages that were delivered with automatic acknowledgement and lost on the way to, or at, their consumer.

    Only consumers whose own process reports deliveries, or the end of handling, for other messages are judged.

    :param messages: one row for each message and queue, with times, counts and outcome, from `outcomes.outcomes_of`
    :param horizon: end of the time that is judged; a message delivered later is not looked for
    """
    from pyspark.sql import functions as F

    seen = F.col("deliveries_sdk") > 0
    consumer = F.struct("queue", F.coalesce("first_sdk", "first_broker")["consumer"].alias("consumer"))
    by_consumer = messages.where(F.col("deliveries") > 0).withColumn("of", consumer)
    capabilities = by_consumer.groupBy("of").agg(
        F.max(seen).alias("receives"),
        F.max((F.col("acks_sdk") > 0) & (F.col("automatic") > 0)).alias("finishes"),
    )
    given = by_consumer.where((F.col("fate") == "handed_over") & (F.col("delivered_at") <= horizon)).join(
        capabilities, "of"
    )
    place = F.when(~seen & F.col("receives"), "to the consumer").when(
        seen & F.col("finishes"), "at the consumer"
    )
    until = F.col("delivered_at") + F.lit(rules.settle)
    return given.select(
        *MESSAGE_COLUMNS, F.col("delivered_at").alias("since"), until.alias("until"), place.alias("place")
    ).where(F.col("place").isNotNull())


def without_queue(messages: DataFrame) -> DataFrame:
    """Return messages that no queue accepted and that the broker did not return to their publisher.

    :param messages: one row for each message and queue, with times, counts and outcome, from `outcomes.outcomes_of`
    """
    from pyspark.sql import functions as F

    at = F.col("published_at")
    return messages.where(F.col("fate") == "unroutable").select(
        *MESSAGE_COLUMNS, at.alias("since"), at.alias("until"), F.lit("no queue").alias("place")
    )
