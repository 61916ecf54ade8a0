"""Aggregation of rates, backlogs, growth and use of the prefetch, and choice of the advice for each queue."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from warren.pipeline.jobs.backlog_advice import Load, measures
from warren.pipeline.jobs.flow.queue_levels import (
    by_queue,
    consumer_times,
    merge_partial_sums,
    observed_consumers,
    queue_levels,
    unrouted,
)
from warren.pipeline.jobs.flow.summary import Consumer, Limit, Options, Queue, Summary, TimelineStep
from warren.pipeline.jobs.flow.trend import Forecast, Growth, forecast, growth
from warren.pipeline.jobs.job import EVENTS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

QUEUES, CONSUMERS = 20, 50
"""Maximum number of queues (those with the most ready messages) and of consumers (those with the most deliveries) in
the summary."""
MIN_STEPS, MAX_STEPS = 10, 120
"""Smallest and largest number of steps into which a queue's timeline is divided; a very short period has fewer."""
SUMS = (
    "published",
    "published_bytes",
    "delivered",
    "redelivered",
    "acked",
    "acknowledgements",
    "rejected",
    "requeued",
    "expired",
    "dropped",
    "auto_acked",
    "settled",
)


def summary_of(tables: Mapping[str, DataFrame], options: Options) -> Summary:
    """Compute the summary of the job.

    :param tables: frames that read the written tables `events`, `steps` and `routes`, by these names
    """
    from pyspark.sql import functions as F

    captured = captured_of(tables[EVENTS])
    steps = merge_partial_sums(tables["steps"]).persist()
    rows = by_queue(steps, tables["routes"])
    levels = queue_levels(rows).persist()
    times = None
    try:
        began, ended = bounds(steps)
        step = step_seconds(ended - began, options.step.total_seconds())
        shown = totals_of(levels)
        number = levels.select("queue").distinct().count() if len(shown) == QUEUES else len(shown)
        timelines = timelines_of(levels, [row["queue"] for row in shown], began, ended, step)
        times = consumer_times(observed_consumers(steps), ended).persist()
        names = [row["queue"] for row in shown]
        used = {row["queue"]: row for row in windows(times.where(F.col("queue").isin(names))).collect()}
        consumers = consumers_of(times)
        more = times.count() - CONSUMERS if len(consumers) == CONSUMERS else 0
        queues = tuple(
            queue_of(
                row,
                used.get(row["queue"]),
                timelines[row["queue"]],
                began,
                ended,
                step,
                options,
            )
            for row in shown
        )
        lost = unrouted(steps, tables["routes"]).agg({"published": "sum"}).collect()[0][0]
        return Summary(
            **captured,
            began=instant(began) if shown else None,
            ended=instant(ended) if shown else None,
            seconds=float(ended - began),
            step_seconds=step,
            trend_seconds=options.trend.total_seconds(),
            unrouted=lost or 0,
            queues=queues,
            more_queues=number - len(shown),
            consumers=consumers,
            more_consumers=more,
        )
    finally:
        for frame in (steps, levels, times):
            if frame is not None:
                frame.unpersist()


def captured_of(events: DataFrame) -> dict[str, int]:
    """Return the fields `sources`, `events`, `missing` and `cut_off` of the summary: numbers of sources, of captured
    events, of lost events, and of events that were not read.

    A source (an application or broker that captures events) numbers its events from 1 on. Missing numbers between its
    events are lost events, those before its first one were not read.
    """
    from pyspark.sql import functions as F

    sources = events.groupBy("source").agg(
        F.count(F.lit(1)).alias("events"), F.min("sequence").alias("first"), F.max("sequence").alias("last")
    )
    row = sources.agg(
        F.count(F.lit(1)).alias("sources"),
        F.sum("events").alias("events"),
        F.sum(F.expr("last - first + 1 - events")).alias("missing"),
        F.sum(F.expr("first - 1")).alias("cut_off"),
    ).collect()[0]
    return {name: value or 0 for name, value in row.asDict().items()}


def bounds(steps: DataFrame) -> tuple[int, int]:
    """Return the captured period as Unix times: the first second with an event, and the second after the last one. Both
    are 0 if there are no events.

    :param steps: the table `steps`: counts of events, with their Unix time in the column `second`
    """
    from pyspark.sql import functions as F

    row = steps.agg(F.min("second").alias("first"), F.max("second").alias("last")).collect()[0]
    return (0, 0) if row["first"] is None else (row["first"], row["last"] + 1)


def step_seconds(seconds: int, every: float) -> int:
    """Return the width in seconds of a step of the timeline.

    It is `every`, the width that the user wants, unless a period of `seconds` would then have too few steps for a trend
    (`MIN_STEPS`) or too many for a chart (`MAX_STEPS`).
    """
    if seconds < MIN_STEPS * every:
        return max(1, min(int(every), seconds // MIN_STEPS))
    return max(1, int(every) * math.ceil(seconds / (every * MAX_STEPS)))


def totals_of(levels: DataFrame) -> list[dict[str, Any]]:
    """Return the totals of the period for each of the `QUEUES` queues with the most ready messages.

    Other queues are left out, because there may be thousands of them, such as reply queues.

    :param levels: counts of events, and ready and unacknowledged messages, by queue and second, from `queue_levels`
    :return: a dict for each queue, by column: the sums of the counts in `SUMS`, the last numbers of ready and
        unacknowledged messages (`ready`, `unacked`), the largest number of ready ones (`peak`), `queue`, `by`,
        `stream` and `began_with`
    """
    from pyspark.sql import functions as F

    found = levels.groupBy("queue").agg(
        F.min("by").alias("by"),
        F.max("stream").alias("stream"),
        *[F.sum(name).alias(name) for name in SUMS],
        F.max("began_with").alias("began_with"),
        F.max_by("ready", "second").alias("ready"),
        F.max_by("unacked", "second").alias("unacked"),
        F.max("ready").alias("peak"),
    )
    order = (F.desc("ready"), F.desc("published"), F.desc("delivered"), "queue")
    return [row.asDict() for row in found.orderBy(*order).limit(QUEUES).collect()]


def timelines_of(
    levels: DataFrame, queues: Sequence[str], began: int, ended: int, step: int
) -> dict[str, list[TimelineStep]]:
    """Return the timeline of each queue, by its name: one entry for every time step of the period, with or without
    events.

    A step without events has the same numbers of ready and unacknowledged messages as the one before it.

    :param levels: counts of events, and ready and unacknowledged messages, by queue and second, from `queue_levels`
    :param began: first second of the period
    :param ended: second after the period
    :param step: width of a step in seconds
    :param queues: names of the queues; each must occur in `levels`
    """
    from pyspark.sql import functions as F

    number = F.floor((F.col("second") - began) / step).alias("number")
    counts = ("published", "delivered", "redelivered", "settled")
    rows = (
        levels.where(F.col("queue").isin(list(queues)))
        .groupBy("queue", number)
        .agg(
            *[F.sum(name).alias(name) for name in counts],
            *[F.max_by(name, "second").alias(name) for name in ("ready", "unacked")],
            F.min_by(
                F.expr("ready - (published - returned - expired - dropped - delivered + requeued)"), "second"
            ).alias("ready_before"),
            F.min_by(
                F.expr("unacked - (delivered - auto_acked - acked - rejected - requeued)"), "second"
            ).alias("unacked_before"),
        )
        .collect()
    )
    at = {(row["queue"], row["number"]): row for row in rows}
    found: dict[str, list[TimelineStep]] = {}
    for queue in queues:
        earliest = min(each for name, each in at if name == queue)
        first = at[queue, earliest]
        ready, unacked = first["ready_before"], first["unacked_before"]
        found[queue] = []
        for each in range(math.ceil((ended - began) / step)):
            row = at.get((queue, each))
            if row is not None:
                ready, unacked = row["ready"], row["unacked"]
            happened = {name: 0 if row is None else row[name] for name in counts}
            starts = began + each * step
            width = min(step, ended - starts)
            found[queue].append(
                TimelineStep(at=instant(starts), seconds=width, **happened, ready=ready, unacked=unacked)
            )
    return found


def windows(times: DataFrame) -> DataFrame:
    """Return one row for each queue with the number of consumers at the end, the largest prefetch, and averages.

    The averages over all consumers of the queue are the used share of the prefetch (`window_used`), the share of time
    with a used up prefetch (`full`) and without a message (`idle`), and the seconds of handling per message
    (`handling`).

    :param times: one row for each consumer with its seconds by state and its counts, from `consumer_times`
    """
    from pyspark.sql import functions as F

    limited = F.col("prefetch") > 0
    return times.groupBy("queue").agg(
        F.min("by").alias("by"),
        F.count_if("stays").alias("consumers"),
        F.max("prefetch").alias("prefetch"),
        (
            F.sum(F.when(limited, F.col("held_seconds")))
            / F.sum(F.when(limited, F.col("prefetch") * F.col("seconds")))
        ).alias("window_used"),
        (F.sum("idle_seconds") / F.sum("seconds")).alias("idle"),
        (F.sum(F.when(limited, F.col("full_seconds"))) / F.sum(F.when(limited, F.col("seconds")))).alias(
            "full"
        ),
        (F.sum(F.col("seconds") - F.col("idle_seconds")) / F.nullif(F.sum("put_down"), F.lit(0))).alias(
            "handling"
        ),
    )


def consumers_of(times: DataFrame) -> tuple[Consumer, ...]:
    """Return the `CONSUMERS` consumers with the most deliveries, with their averages over time.

    :param times: one row for each consumer with its seconds by state and its counts, from `consumer_times`
    """
    from pyspark.sql import functions as F

    order = (F.desc("delivered"), "queue", "connection", "consumer")
    return tuple(
        Consumer(
            queue=row["queue"],
            connection=row["connection"] or None,
            by=row["by"],
            consumer=row["consumer"],
            prefetch=row["prefetch"],
            seconds=float(row["seconds"]),
            delivered=row["delivered"],
            settled=row["settled"],
            held=row["held_seconds"] / row["seconds"],
            window_used=row["held_seconds"] / row["seconds"] / row["prefetch"] if row["prefetch"] else None,
            idle=row["idle_seconds"] / row["seconds"],
            full=row["full_seconds"] / row["seconds"] if row["prefetch"] else None,
        )
        for row in times.orderBy(*order).limit(CONSUMERS).collect()
    )


def queue_of(
    row: Mapping[str, Any],
    used: Any,
    timeline: list[TimelineStep],
    began: int,
    ended: int,
    step: int,
    options: Options,
) -> Queue:
    """Compute the summary of one queue: rates, ready and unacknowledged messages, growth, forecast, recommended
    measures.

    :param row: totals of the queue's counts over the period, its last numbers of ready and unacknowledged messages, and
        the largest number of ready ones, from `totals_of`
    :param used: averages over the queue's consumers, from `windows`: number of consumers, prefetch, its used share,
        share of time without messages, seconds per message; None if no consumer is known
    :param timeline: counts of events and numbers of ready and unacknowledged messages in each time step
    :param began: first second of the period
    :param ended: second after the period
    :param step: width of a time step in seconds
    """
    seconds = ended - began
    whole = timeline[: seconds // step]
    recent_with_start = whole[-max(math.ceil(options.trend.total_seconds() / step), 1) - 1 :]
    stream = row["stream"]
    grows = None if stream else growth([each.ready or 0 for each in recent_with_start], step)
    size = row["published_bytes"] / row["published"] if row["published"] and row["published_bytes"] else None
    ahead = None if stream else forecast_of(row["ready"], size, grows, options.limit)
    recent = recent_with_start[1:] or timeline
    span = sum(each.seconds for each in recent)
    window = None if used is None else used.asDict()
    redelivered = row["redelivered"] / row["delivered"] if row["delivered"] else 0.0
    together = row["acked"] / row["acknowledgements"] if row["acknowledgements"] else None
    known: dict[str, Any] = window or dict.fromkeys(
        ("by", "prefetch", "window_used", "idle", "full", "handling")
    )
    consumers = known.get("consumers") or 0
    helping = (
        ()
        if stream
        else measures(
            Load(
                ready=row["ready"],
                growth=None if grows is None else (grows.slope, grows.low, grows.high),
                arriving=sum(each.published for each in recent) / span,
                leaving=sum(each.settled for each in recent) / span,
                redelivered=redelivered,
                consumers=consumers,
                prefetch=known["prefetch"],
                window_used=known["window_used"],
                full=known["full"],
                # A broker cannot see a consumer wait for messages in transit.
                idle=known["idle"] if known["by"] == "sdk" else None,
                handling=known["handling"],
                acknowledged_together=together,
                fills_in=None if ahead is None else ahead.full_in,
            )
        )
    )
    counts = {
        name: row[name] for name in SUMS if name not in ("published_bytes", "acknowledgements", "settled")
    }
    return Queue(
        queue=row["queue"],
        by=row["by"],
        stream=stream,
        **counts,
        published_a_second=row["published"] / seconds,
        delivered_a_second=row["delivered"] / seconds,
        settled_a_second=row["settled"] / seconds,
        redelivered_share=redelivered,
        bytes_a_message=size,
        began_with=row["began_with"],
        ready=row["ready"],
        unacked=row["unacked"],
        peak=row["peak"],
        growth=grows,
        consumers=consumers,
        prefetch=known["prefetch"],
        window_used=known["window_used"],
        idle=known["idle"],
        full=known["full"],
        handling_seconds=known["handling"],
        acknowledged_together=together,
        forecast=ahead,
        measures=helping,
        timeline=tuple(timeline),
    )


def forecast_of(ready: int, size: float | None, grows: Growth | None, limit: Limit | None) -> Forecast | None:
    """Return the forecast of when the queue reaches its maximum length; None without such a limit, or if the limit is
    in bytes and message sizes are unknown.

    :param ready: current number of ready messages
    :param size: average size of a message in bytes, if known
    :param grows: growth of the ready messages
    """
    if limit is None:
        return None
    if limit.unit == "messages":
        return forecast(ready, limit.value, limit.unit, grows)
    return None if size is None else forecast(ready * size, limit.value, limit.unit, grows, size)


def instant(second: int) -> str:
    """Format a Unix time as ISO 8601 in UTC."""
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=second)).isoformat()
