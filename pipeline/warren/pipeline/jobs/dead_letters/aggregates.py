"""Aggregation of dead letters by queue, reason, number of deaths, delay, time, and burst. A death is one dead-lettering
of a message.

Two dead letters with the same message id, queue, reason, count and time report the same death, and count as one. They
exist if two streams received a copy, or if a dead letter was sent again.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from warren.pipeline.jobs.dead_letters.facts import PUBLISHED_FROM
from warren.pipeline.jobs.dead_letters.summary import (
    Bucket,
    Burst,
    BurstRule,
    DeathDelay,
    Group,
    Place,
    Summary,
    TimelineStep,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame, Row

QUANTILES = (0.10, 0.25, 0.50, 0.75, 0.90, 0.95, 0.99)
EDGES = (0.1, 1, 5, 10, 30, 60, 300, 900, 1800, 3600, 7200, 21_600, 86_400, 604_800)
"""Upper edges of the histogram of delays, in seconds; the last bucket is unbounded."""
TIMES = (1, 2, 3, 5, 10)
"""Upper edges of the histogram of deaths per message (how many times it was dead-lettered); the last bucket is
unbounded."""
PLACES, GROUPS, BURSTS = 50, 20, 20
"""Maximum numbers in the summary, each taking those with the most deaths: places (pairs of queue and reason), groups
(such as message types), and bursts."""
SLOTS = 60
"""Maximum number of time steps in the chart of deaths (dead-letterings) over time."""
STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21_600, 43_200, 86_400)
"""Possible widths in seconds of a time step in the chart of deaths over time; longer ones are multiples of the last."""
REASONS = 5
"""Number of reasons with a colour of their own in the chart of deaths over time; the others are combined."""


def summary_of(letters: DataFrame, bursts: BurstRule) -> Summary:
    """Compute the summary of the dead letters.

    :param letters: one row for each dead letter with queue, reason and times of its death, from `facts.letters_of`
    :param bursts: definition of a burst
    """
    from pyspark.sql import functions as F

    read = letters.agg(
        F.count(F.lit(1)).alias("letters"), F.count_if(F.col("reason").isNull()).alias("unexplained")
    ).collect()[0]
    deaths = letters.where(F.col("reason").isNotNull()).withColumn("who", message_identity())
    deaths = deaths.dropDuplicates(["who", "died_in", "reason", "deaths_here", "deaths", "died_at"]).persist()
    try:
        total = totals(deaths)
        reasons = {row["reason"]: row["count"] for row in ranked(deaths, "reason", limit=1000)}
        places, more = places_of(deaths)
        times = times_of(deaths)
        step, timeline = timeline_of(deaths, total, list(reasons)[:REASONS])
        found, largest = bursts_of(deaths, bursts)
        return Summary(
            letters=read["letters"],
            repeated=read["letters"] - read["unexplained"] - total["deaths"],
            unexplained=read["unexplained"],
            deaths=total["deaths"],
            messages=sum(bucket.count for bucket in times),
            first=iso_time(total["first"]),
            last=iso_time(total["last"]),
            by_reason=reasons,
            places=places,
            more_places=more,
            origins=groups(deaths, "exchange", "routing_key"),
            types=groups(deaths, "type"),
            errors=groups(deaths.where("error IS NOT NULL").withColumn("error", exception_type()), "error"),
            times=times,
            after=after_of(total),
            step_seconds=step,
            timeline=timeline,
            undated=total["undated"],
            burst_gap_seconds=bursts.gap.total_seconds(),
            burst_least=bursts.least,
            burst_of=bursts.of,
            bursts=found["bursts"],
            deaths_in_bursts=found["inside"] or 0,
            deaths_beside_bursts=(found["looked_at"] or 0) - (found["inside"] or 0),
            deaths_left_out=total["deaths"] - (found["looked_at"] or 0),
            largest_bursts=largest,
        )
    finally:
        deaths.unpersist()


def message_identity() -> Column:
    """Return the column that identifies a message: its id or, without one, the queue or stream from which its dead
    letter was read, with the column `offset` (in a stream its offset, in a queue its number in the order of reading).
    """
    from pyspark.sql import functions as F

    return F.coalesce(
        F.concat(F.lit("id "), "message_id"),
        F.concat_ws(" ", F.lit("at"), F.col("offset"), F.col("read_from")),
    )


def totals(deaths: DataFrame) -> dict[str, Any]:
    """Compute the numbers over all deaths (dead-letterings of a message) in one pass: counts, first and last time, and
    the delays from publishing with their quantiles.

    :param deaths: one row for each death
    :return: the numbers by name: `deaths`, `undated` (deaths without a time), `first` and `last` (times in microseconds
        since 1970), and those from which `after_of` makes a `DeathDelay`
    """
    from pyspark.sql import functions as F

    after = F.when(F.col("published_from") != "first_death", F.col("after_seconds"))
    numbers = [
        F.count(F.lit(1)).alias("deaths"),
        F.unix_micros(F.min("died_at")).alias("first"),
        F.unix_micros(F.max("died_at")).alias("last"),
        F.count_if(F.col("died_at").isNull()).alias("undated"),
        F.count(after).alias("known"),
        F.count_if(after.isNotNull() & (F.col("within_seconds") >= 1)).alias("within_a_second"),
        F.count_if(F.col("after_seconds").isNotNull() & after.isNull()).alias("least_only"),
        F.count_if(F.col("after_seconds").isNull()).alias("unknown"),
        F.count_if(after < 0).alias("before_publish"),
        F.min(after).alias("minimum"),
        F.max(after).alias("maximum"),
        F.mean(after).alias("mean"),
        F.percentile(after, list(QUANTILES)).alias("quantiles"),
        *[F.count_if(F.col("published_from") == name).alias(f"from_{name}") for name in PUBLISHED_FROM],
        *[
            F.count_if(in_bucket(after, *edges)).alias(f"after_{at}")
            for at, edges in enumerate(bucket_edges(EDGES))
        ],
    ]
    return deaths.agg(*numbers).collect()[0].asDict()


def after_of(total: dict[str, Any]) -> DeathDelay:
    """Return the distribution of delays from publishing to death (dead-lettering).

    :param total: numbers over all deaths, from `totals`
    """
    levels = zip(QUANTILES, total["quantiles"] or (), strict=False)
    return DeathDelay(
        known=total["known"],
        by_source={name: total[f"from_{name}"] for name in PUBLISHED_FROM},
        within_a_second=total["within_a_second"],
        least_only=total["least_only"],
        unknown=total["unknown"],
        before_publish=total["before_publish"],
        minimum=total["minimum"],
        maximum=total["maximum"],
        mean=total["mean"],
        quantiles={f"{level:.2f}": value for level, value in levels},
        histogram=tuple(
            Bucket(above, up_to, total[f"after_{at}"])
            for at, (above, up_to) in enumerate(bucket_edges(EDGES))
        ),
    )


def places_of(deaths: DataFrame) -> tuple[tuple[Place, ...], int]:
    """Return the `PLACES` pairs of queue and reason with the most deaths (dead-letterings), and the number of other
    pairs.

    :param deaths: one row for each death
    """
    from pyspark.sql import functions as F

    after = F.when(F.col("published_from") != "first_death", F.col("after_seconds"))
    found = deaths.groupBy("died_in", "reason").agg(
        F.count(F.lit(1)).alias("deaths"),
        F.count_distinct("who").alias("messages"),
        F.unix_micros(F.min("died_at")).alias("first"),
        F.unix_micros(F.max("died_at")).alias("last"),
        F.percentile(after, [0.5, 0.9]).alias("after"),
    )
    rows = found.orderBy(F.desc("deaths"), "died_in", "reason").limit(PLACES).collect()
    places = tuple(
        Place(
            queue=row["died_in"] or "",
            reason=row["reason"],
            deaths=row["deaths"],
            messages=row["messages"],
            first=iso_time(row["first"]),
            last=iso_time(row["last"]),
            median_after=(row["after"] or (None, None))[0],
            p90_after=(row["after"] or (None, None))[1],
        )
        for row in rows
    )
    return places, found.count() - len(places) if len(places) == PLACES else 0


def ranked(deaths: DataFrame, *columns: str, limit: int) -> list[Row]:
    """Return the `limit` most frequent combinations of values in the given columns, with their number of deaths
    (`count`).

    :param deaths: one row for each death, a dead-lettering of a message
    """
    from pyspark.sql import functions as F

    return deaths.groupBy(*columns).count().orderBy(F.desc("count"), *columns).limit(limit).collect()


def groups(deaths: DataFrame, *columns: str) -> tuple[Group, ...]:
    """Return the most frequent combinations of values in the given columns, with their number of deaths, for the
    summary.

    :param deaths: one row for each death, a dead-lettering of a message
    """
    found = ranked(deaths, *columns, limit=GROUPS)
    return tuple(Group(tuple(row[column] for column in columns), row["count"]) for row in found)


def exception_type() -> Column:
    """Return the column with the type of the error that the SDK recorded: `OSError` of `OSError: no route to host`."""
    from pyspark.sql import functions as F

    return F.regexp_extract("error", r"^([^:\s]{1,100})", 1)


def times_of(deaths: DataFrame) -> tuple[Bucket, ...]:
    """Return a histogram of deaths per message: how many messages were dead-lettered once, twice, three times, four to
    five times, and so on.

    A dead letter records how often its message has died since it was published. A message that is published again, by
    hand or by another tool, begins a new history. Two letters with the same number of deaths are therefore of different
    histories; the highest numbers of all histories are added. A message has died at least so often.

    :param deaths: one row for each death, a dead-lettering of a message
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    history = F.row_number().over(Window.partitionBy("who", "deaths").orderBy("died_at"))
    each = deaths.withColumn("history", history).groupBy("who", "history").agg(F.max("deaths").alias("times"))
    each = each.groupBy("who").agg(F.sum("times").alias("times"))
    buckets = list(enumerate(bucket_edges(TIMES)))
    row = each.agg(*[F.count_if(in_bucket(F.col("times"), *edges)).alias(f"n{at}") for at, edges in buckets])
    counts = row.collect()[0]
    return tuple(Bucket(above, up_to, counts[f"n{at}"]) for at, (above, up_to) in buckets)


def timeline_of(
    deaths: DataFrame, total: dict[str, Any], reasons: Sequence[str]
) -> tuple[int, tuple[TimelineStep, ...]]:
    """Return the width of a time step in seconds, and the number of deaths by reason in each step; steps without deaths
    are left out.

    :param deaths: one row for each death
    :param total: numbers over all deaths, from `totals`, of which the first and last time are used
    :param reasons: reasons that are counted separately; the others are combined
    """
    from pyspark.sql import functions as F

    if total["first"] is None:
        return STEPS[0], ()
    step = step_for((total["last"] - total["first"]) / 1_000_000)
    named = F.when(F.col("reason").isin(list(reasons)), F.col("reason")).otherwise("others")
    slot = F.floor(F.unix_micros("died_at") / (step * 1_000_000)).alias("slot")
    found: dict[int, dict[str, int]] = {}
    rows = deaths.where("died_at IS NOT NULL").groupBy(slot, named.alias("reason")).count().collect()
    for row in sorted(rows, key=lambda row: (row["slot"], row["reason"])):
        found.setdefault(row["slot"], {})[row["reason"]] = row["count"]
    return step, tuple(
        TimelineStep(str(iso_time(slot * step * 1_000_000)), counts) for slot, counts in found.items()
    )


def step_for(seconds: float) -> int:
    """Return the smallest width of a time step in seconds with which a period of `seconds` has at most `SLOTS`
    steps.
    """
    for step in STEPS:
        if seconds / step < SLOTS - 1:
            return step
    return STEPS[-1] * -int(-seconds // (STEPS[-1] * (SLOTS - 1)))


def bursts_of(deaths: DataFrame, what: BurstRule) -> tuple[dict[str, Any], tuple[Burst, ...]]:
    """Find bursts: many deaths (dead-letterings) at short intervals. Return a dict with the number of bursts
    (`bursts`), of deaths in them (`inside`) and of all deaths examined (`looked_at`), and the largest bursts.

    A broker keeps only the time of a message's first death in a queue for a reason. A message therefore counts once for
    each queue and reason, at that time. A message without an id counts only if it died there once, because its deaths
    cannot be told apart from those of other messages.

    :param deaths: one row for each death
    :param what: definition of a burst
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    dated = F.col("died_at").isNotNull() & (F.col("message_id").isNotNull() | (F.col("deaths_here") == 1))
    once = deaths.where(dated).dropDuplicates(["who", "died_in", "reason", "died_at"])
    kind = ["reason", "died_in"] if what.of == "queue" else ["reason"]
    in_order = Window.partitionBy(*kind).orderBy("died_at")
    gap = F.unix_micros("died_at") - F.lag(F.unix_micros("died_at")).over(in_order)
    begins = F.coalesce(gap > int(what.gap.total_seconds() * 1_000_000), F.lit(True)).cast("long")
    until_now = in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    sessions = (
        once.withColumn("begins", begins)
        .withColumn("number", F.sum("begins").over(until_now))
        .groupBy(*kind, "number")
        .agg(
            F.count(F.lit(1)).alias("deaths"),
            F.unix_micros(F.min("died_at")).alias("began"),
            F.unix_micros(F.max("died_at")).alias("ended"),
            F.mode("type", deterministic=True).alias("type"),
        )
    )
    large = F.col("deaths") >= what.least
    found = sessions.agg(
        F.count_if(large).alias("bursts"),
        F.sum(F.when(large, F.col("deaths"))).alias("inside"),
        F.sum("deaths").alias("looked_at"),
    ).collect()[0]
    rows = sessions.where(large).orderBy(F.desc("deaths"), "began", *kind).limit(BURSTS).collect()
    return found.asDict(), tuple(
        Burst(
            queue=row["died_in"] if what.of == "queue" else None,
            reason=row["reason"],
            began=str(iso_time(row["began"])),
            ended=str(iso_time(row["ended"])),
            seconds=(row["ended"] - row["began"]) / 1_000_000,
            deaths=row["deaths"],
            type=row["type"],
        )
        for row in rows
    )


def bucket_edges(edges: Sequence[float]) -> list[tuple[float | None, float | None]]:
    """Return the lower and upper edge of each bucket of a histogram; None is unbounded.

    :param edges: ascending edges between the buckets
    """
    return list(zip([None, *edges], [*edges, None], strict=True))


def in_bucket(value: Column, above: float | None, up_to: float | None) -> Column:
    """Return the column "the value is over `above` and at most `up_to`"; None is unbounded."""
    from pyspark.sql import functions as F

    over = F.lit(True) if above is None else value > above
    under = F.lit(True) if up_to is None else value <= up_to
    return value.isNotNull() & over & under


def iso_time(micros: int | None) -> str | None:
    """Format microseconds since 1970 as ISO 8601 in UTC; None remains None."""
    if micros is None:
        return None
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)).isoformat()
