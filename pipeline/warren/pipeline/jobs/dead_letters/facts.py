"""Extraction of one row from each dead letter: queue, reason, number of deaths (dead-letterings), delay since
publishing.

A broker writes the header `x-death` (RabbitMQ, "Dead Letter Exchanges"; Warren does the same): an array with the latest
death first, one entry for each queue and reason, with the count of deaths and the time of the *first* of them, in whole
seconds. The SDK writes headers of its own for each death, with times in milliseconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from warren.pipeline.jobs.event_times import bounded_time, time_of_millis, time_of_text
from warren.sdk.extend import (
    DEAD_ERROR,
    DEAD_FIRST_TIME,
    DEAD_QUEUE,
    DEAD_REASON,
    DEAD_TIME,
    DEATHS,
    FIRST_PUBLISHED,
    ORIGIN_EXCHANGE,
    ORIGIN_KEY,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

X_DEATH = "array<struct<count:bigint,reason:string,queue:string,time:string,exchange:string,`routing-keys`:array<string>>>"
UUID7 = "(?i)^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$"
"""Pattern of UUID version 7 (RFC 9562 section 5.7); the first twelve digits are Unix milliseconds."""

MAX_CLOCK_DIFFERENCE = 2.0
"""Maximum difference in seconds between the time in a UUID version 7 message id and the property `timestamp`. Within it
the id's time is used, which is more precise; beyond it the id was created for another purpose than the publish."""

WHOLE_SECONDS, MILLISECONDS = 1.0, 0.001

PUBLISHED_FROM = {
    "header": "the SDK's header with the time of the first publish, in milliseconds",
    "message_id": "a message id of UUID version 7, in milliseconds",
    "timestamp": "the property timestamp, in whole seconds",
    "first_death": "an earlier death, before which the message was published: a lower bound",
}
"""Sources from which the time of publishing is taken, the most precise one first; the first that is present is used."""


def letters_of(messages: DataFrame) -> DataFrame:
    """Return one row for each message that was read, with what its headers record about its dead-letterings (deaths).

    `reason` is null for a message without such headers. `died_at` is the time of the death that moved the message to
    the queue or stream that was read. If the message died several times in one queue for one reason (`deaths_here`), it
    is the time of the first of these deaths, because brokers keep no other. `after_seconds` is the delay from
    publishing to `died_at`; it is precise to `within_seconds`, provided that the clocks agree. It is only a lower bound
    if `published_from` is `first_death`, because the time of publishing is unknown.
    """
    from pyspark.sql import functions as F

    header_rows = messages.select(
        F.col("queue").alias("read_from"),
        "offset",
        "message_id",
        "type",
        "app_id",
        F.length("body").cast("long").alias("bytes"),
        F.col("exchange").alias("here_exchange"),
        F.col("routing_key").alias("here_key"),
        bounded_time(F.col("timestamp")).alias("stamped_at"),
        F.col("headers").alias("headers"),
        F.from_json(F.col("headers")["x-death"], X_DEATH).alias("history"),
    ).withColumns(
        {
            "latest": F.try_element_at("history", F.lit(1)),
            "sdk_time": header_milliseconds(DEAD_TIME),
            "sdk_deaths": F.coalesce(F.col("headers")[DEATHS].try_cast("long"), F.lit(0)),
        }
    )
    return (
        header_rows.withColumn("told_by", reported_by())
        .select(
            "read_from",
            "offset",
            "message_id",
            "type",
            "app_id",
            "bytes",
            "told_by",
            *death_columns(),
            *time_columns(),
        )
        .transform(with_age)
    )


def reported_by() -> Column:
    """Return the column with the author of the headers that describe the latest death (dead-lettering): `broker`
    (header `x-death`), `sdk`, or null if there are none.

    When the SDK dead-letters a message it removes `x-death`. A message with both kinds of headers has therefore died
    more than once, and the later of the two deaths counts.
    """
    from pyspark.sql import functions as F

    by_broker, by_sdk = latest_death("queue").isNotNull(), F.col("headers")[DEAD_REASON].isNotNull()
    broker_is_later = F.unix_seconds(time_of_text(F.col("latest")["time"])) >= F.unix_seconds("sdk_time")
    return F.when(by_broker & (~by_sdk | F.coalesce(broker_is_later, F.lit(True))), "broker").when(
        by_sdk, "sdk"
    )


def latest_death(part: str) -> Column:
    """Return the column with the queue or the reason of the latest death (dead-lettering) that a broker recorded.

    A stream of RabbitMQ 3.10 drops headers that are arrays, and with them `x-death`. The headers `x-last-death-...` are
    used instead or, because that version does not write them, `x-first-death-...`.

    :param part: part of the record to return, `queue` or `reason`
    """
    from pyspark.sql import functions as F

    headers = F.col("headers")
    names = F.coalesce(headers[f"x-last-death-{part}"], headers[f"x-first-death-{part}"])
    reason_present = F.coalesce(headers["x-last-death-reason"], headers["x-first-death-reason"]).isNotNull()
    return F.coalesce(F.col("latest")[part], F.when(reason_present, names))


def death_columns() -> list[Column]:
    """Return the columns about a message's dead-letterings (deaths): queue, reason and error of the latest one,
    exchange and routing key of the original publish, numbers of deaths, and queue and reason of the first one.
    """
    from pyspark.sql import functions as F

    headers, latest, history = F.col("headers"), F.col("latest"), F.col("history")
    broker, sdk = F.col("told_by") == "broker", F.col("told_by") == "sdk"
    counted = F.aggregate(
        history, F.lit(0).cast("long"), lambda total, each: total + F.coalesce(each["count"], F.lit(1))
    )
    earliest = F.element_at(history, -1)
    return [
        F.when(broker, latest_death("queue")).when(sdk, headers[DEAD_QUEUE]).alias("died_in"),
        F.when(broker, latest_death("reason")).when(sdk, headers[DEAD_REASON]).alias("reason"),
        F.when(sdk, headers[DEAD_ERROR]).alias("error"),
        F.coalesce(headers[ORIGIN_EXCHANGE], F.when(broker, latest["exchange"]), "here_exchange").alias(
            "exchange"
        ),
        F.coalesce(
            headers[ORIGIN_KEY],
            F.when(broker, F.try_element_at(latest["routing-keys"], F.lit(1))),
            "here_key",
        ).alias("routing_key"),
        F.when(broker, F.coalesce(latest["count"], F.lit(1))).when(sdk, F.lit(1)).alias("deaths_here"),
        F.when(broker, F.col("sdk_deaths") + F.coalesce(counted, F.lit(1)))
        .when(sdk, F.greatest(F.col("sdk_deaths"), F.lit(1)))
        .alias("deaths"),
        F.when(broker, F.coalesce(headers["x-first-death-queue"], earliest["queue"])).alias("first_died_in"),
        F.when(broker, F.coalesce(headers["x-first-death-reason"], earliest["reason"])).alias("first_reason"),
    ]


def time_columns() -> list[Column]:
    """Return the columns with the times of the latest and first death (dead-lettering), the time of publishing, and the
    source of the latter, a key of `PUBLISHED_FROM`.
    """
    from pyspark.sql import functions as F

    broker = F.col("told_by") == "broker"
    first_here = F.array_min(F.transform("history", lambda each: time_of_text(each["time"])))
    earliest = F.least(F.when(broker, first_here), "sdk_time")
    first = F.coalesce(header_milliseconds(DEAD_FIRST_TIME), earliest)
    died_at = F.when(broker, time_of_text(F.col("latest")["time"])).otherwise(F.col("sdk_time"))
    by_id = F.when(
        F.col("message_id").rlike(UUID7),
        time_of_millis(
            F.conv(F.concat(F.substring("message_id", 1, 8), F.substring("message_id", 10, 4)), 16, 10).cast(
                "long"
            )
        ),
    )
    stamp, by_header = F.col("stamped_at"), header_milliseconds(FIRST_PUBLISHED)
    difference = F.abs(F.unix_micros(by_id) - F.unix_micros(stamp)) / 1_000_000
    by_id = F.when(stamp.isNull() | (difference <= MAX_CLOCK_DIFFERENCE), by_id)
    by_death = F.when(first < died_at, first)
    return [
        died_at.alias("died_at"),
        first.alias("first_died_at"),
        F.coalesce(by_header, by_id, stamp, by_death).alias("published_at"),
        F.when(by_header.isNotNull(), "header")
        .when(by_id.isNotNull(), "message_id")
        .when(stamp.isNotNull(), "timestamp")
        .when(by_death.isNotNull(), "first_death")
        .alias("published_from"),
    ]


def with_age(letters: DataFrame) -> DataFrame:
    """Add the delay from publishing to death (dead-lettering) in seconds (`after_seconds`), and its precision
    (`within_seconds`).

    A negative delay that is smaller than the precision counts as 0.
    """
    from pyspark.sql import functions as F

    coarse = (F.col("told_by") == "broker") | F.col("published_from").isin("timestamp", "first_death")
    within = F.when(coarse, WHOLE_SECONDS).otherwise(MILLISECONDS)
    difference = (F.unix_micros("died_at") - F.unix_micros("published_at")) / 1_000_000
    return letters.withColumns(
        {
            "after_seconds": F.when((difference < 0) & (difference > -within), 0.0).otherwise(difference),
            "within_seconds": F.when(difference.isNotNull(), within),
        }
    )


def header_milliseconds(header: str) -> Column:
    """Return the column with the time that a header of the SDK states in Unix milliseconds; null without a
    valid one.

    :param header: name of the header
    """
    from pyspark.sql import functions as F

    return time_of_millis(F.col("headers")[header].try_cast("long"))
