"""The job `order-timeouts`: which orders were paid in time, late or never, and how other timeouts would have done.

It reads an audit queue that got a copy of every message about an order. Messages come at least once, so a
message id counts once, and so does a repeated fact of one order; of two times for one fact the earlier counts.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warren.command import UsageError
from warren.pipeline import register
from warren.pipeline.browse import Browse, redacted
from warren.pipeline.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

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

TIMEOUT = timedelta(minutes=30)
OTHER_TIMEOUTS = tuple(timedelta(minutes=minutes) for minutes in (10, 20, 60, 120))
QUANTILES = (0.10, 0.25, 0.50, 0.75, 0.90, 0.95, 0.99)
EDGES = tuple(
    60 * minutes for minutes in (1, 5, 10, 15, 20, 30, 45, 60, 120, 240, 720, 1440, 2880, 4320, 10_080)
)
"""Upper edges of the histogram's buckets, in seconds; the timeout is one more, and the last bucket is open."""

OUTCOMES = ("paid_in_time", "paid_late", "cancelled")
CONTRADICTIONS = {
    "open": "placed, and neither paid nor cancelled",
    "paid_and_cancelled": "paid and cancelled, and not refunded",
    "refunded_not_cancelled": "paid and refunded, but never cancelled",
    "refunded_not_paid": "refunded, but never paid",
    "not_placed": "paid, cancelled or refunded, but never placed",
}
"""What an order must not be once everything has settled, and what it says."""
EXAMPLES = 10


@dataclass(frozen=True)
class Messages:
    """What the queue held."""

    read: int
    duplicates: int
    """Messages whose id was seen before."""
    unreadable: int
    """Messages of a known type without an order id in a JSON body."""
    of_other_types: int
    by_type: dict[str, int]


@dataclass(frozen=True)
class Bucket:
    """Payments later than `above` seconds after the order and at most `up_to` (None: no end)."""

    above: int | None
    up_to: int | None
    count: int


@dataclass(frozen=True)
class Recount:
    """What the orders' own times would have meant under a timeout; at the timeout exactly is in time."""

    timeout_seconds: int
    paid_in_time: int
    paid_late: int
    never_paid: int


@dataclass(frozen=True)
class Delay:
    """How long after the order it was paid, in seconds, over the orders that have both times."""

    payments: int
    before_order: int
    """Payments that are earlier than their order."""
    minimum: float | None
    maximum: float | None
    mean: float | None
    quantiles: dict[str, float]
    """By level ("0.50"), interpolated linearly between neighbours."""
    histogram: tuple[Bucket, ...]


@dataclass(frozen=True)
class Summary:
    """What became of the orders. The outcomes and the contradictions add up to `orders`."""

    source: str
    queue: str
    timeout_seconds: int
    messages: Messages
    orders: int
    paid_in_time: int
    paid_late: int
    """Cancelled, then paid, then refunded."""
    cancelled: int
    """Cancelled, and never paid."""
    contradictions: dict[str, int]
    decided_otherwise: int
    """Paid orders whose outcome is not the one that their own times mean under the timeout."""
    examples: dict[str, tuple[str, ...]]
    """Some order ids for each contradiction, and for `decided_otherwise`."""
    delay: Delay
    recount: tuple[Recount, ...]
    seconds: float
    """Real time that the job took, Spark's start included."""

    def as_dict(self) -> dict[str, Any]:
        return {"job": "order-timeouts", **asdict(self)}


def run(
    source: str,
    queue: str,
    out: Path,
    *,
    timeout: timedelta = TIMEOUT,
    other_timeouts: Sequence[timedelta] = OTHER_TIMEOUTS,
    master: str = "local[*]",
    read_timeout: float = 30.0,
    progress: Callable[[str], None] = lambda step: None,
) -> Summary:
    """Read the queue, write `events/`, `orders/`, `summary.json` and `report.html` into `out`.

    The queue keeps its messages. `out` is made if it is missing; what an earlier run left in it is replaced. On
    a cluster it lies on storage that the driver and the executors share.

    :param timeout: after which the workflow cancels an unpaid order
    :param other_timeouts: for which the outcomes are counted again
    :param read_timeout: seconds without progress after which reading fails
    :param progress: told what begins, in a few words
    :raises PipelineError: if the queue cannot be read
    :raises UsageError: if Spark cannot start
    """
    from warren.pipeline.datasource import source_errors

    started = time.monotonic()
    browse = Browse(source, queue, read_timeout)
    folder = spark_path(out)
    out.mkdir(parents=True, exist_ok=True)
    progress("starting Spark")
    with spark_session("warren order-timeouts", master, out / "spark.log") as spark, source_errors():
        progress(f"reading {queue}")
        events = stored(events_of(waiting(spark, browse)), f"{folder}/events")
        progress("deciding every order")
        orders = stored(orders_of(events, timeout), f"{folder}/orders")
        progress("counting")
        timeouts = sorted({timeout, *other_timeouts})
        counted = counts_of(orders, timeout, timeouts)
        messages = messages_of(events)
        examples = examples_of(orders) if has_oddities(counted) else {}
    summary = summarised(counted, browse, timeout, timeouts, messages, examples, time.monotonic() - started)
    write(out, summary)
    return summary


def waiting(spark: SparkSession, browse: Browse) -> DataFrame:
    """The messages that wait in the queue."""
    register(spark)
    options = {"url": browse.url, "queue": browse.queue, "timeout": str(browse.timeout)}
    return spark.read.format("amqp").options(**options).load()


def stored(frame: DataFrame, path: str) -> DataFrame:
    """The frame, written once; everything after reads the files, so the queue is read once as well."""
    frame.write.mode("overwrite").parquet(path)
    return frame.sparkSession.read.schema(frame.schema).parquet(path)


def spark_path(out: Path) -> str:
    """:raises UsageError: for characters that Spark takes for a pattern or a scheme"""
    path = str(out.absolute())
    if found := re.search(r"[*?\[\]{}:\\]", path):
        raise UsageError(f"the output folder {path} has a {found[0]!r} in it, which Spark cannot write to")
    return f"file://{path}"


def events_of(messages: DataFrame) -> DataFrame:
    """One row a message, with what it says about which order."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    body = F.from_json(F.col("body").cast("string"), FIELDS)
    kinds = F.create_map(*[F.lit(word) for pair in KINDS.items() for word in pair])
    same_id = Window.partitionBy("message_id", F.when(F.col("message_id").isNull(), F.col("offset")))
    return messages.select(
        "offset",
        "message_id",
        "type",
        kinds[F.col("type")].alias("kind"),
        body["order_id"].alias("order_id"),
        body["placed_at"].cast("timestamp").alias("placed_at"),
        body["paid_at"].cast("timestamp").alias("paid_at"),
        "exchange",
        "routing_key",
        "redelivered",
        F.col("timestamp").alias("sent_at"),
        (F.row_number().over(same_id.orderBy("offset")) > 1).alias("duplicate"),
    )


def orders_of(events: DataFrame, timeout: timedelta) -> DataFrame:
    """One row an order: its times, what was said about it, and its outcome."""
    from pyspark.sql import functions as F

    def said(kind: str) -> Column:
        return F.max(F.col("kind") == kind).alias(kind)

    def earliest(time_of: str, kind: str) -> Column:
        return F.coalesce(F.min(F.when(F.col("kind") == kind, F.col(time_of))), F.min(time_of)).alias(time_of)

    facts = events.where(~F.col("duplicate") & F.col("kind").isNotNull() & F.col("order_id").isNotNull())
    orders = facts.groupBy("order_id").agg(
        earliest("placed_at", "placed"),
        earliest("paid_at", "paid"),
        *[said(kind) for kind in ("placed", "paid", "cancelled", "refunded")],
    )
    delay = (F.unix_micros("paid_at") - F.unix_micros("placed_at")) / 1_000_000
    in_time = F.col("delay_seconds") <= timeout.total_seconds()
    return (
        orders.withColumn("delay_seconds", delay)
        .withColumn("outcome", outcome())
        .withColumn(
            "decided_otherwise",
            F.coalesce(
                ((F.col("outcome") == "paid_in_time") & ~in_time)
                | ((F.col("outcome") == "paid_late") & in_time),
                F.lit(False),
            ),
        )
    )


def outcome() -> Column:
    """What the messages about an order come to: one of `OUTCOMES`, or of `CONTRADICTIONS`."""
    from pyspark.sql import functions as F

    placed, paid, cancelled, refunded = (F.col(name) for name in ("placed", "paid", "cancelled", "refunded"))
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


def counts_of(orders: DataFrame, timeout: timedelta, timeouts: Sequence[timedelta]) -> dict[str, Any]:
    """Every number about the orders, in one pass."""
    from pyspark.sql import functions as F

    delay = F.col("delay_seconds")
    numbers = [F.count(F.lit(1)).alias("orders")]
    numbers += [F.count_if(F.col("outcome") == name).alias(name) for name in (*OUTCOMES, *CONTRADICTIONS)]
    numbers += [
        F.count_if("decided_otherwise").alias("decided_otherwise"),
        F.count(delay).alias("payments"),
        F.count_if(delay < 0).alias("before_order"),
        F.min(delay).alias("minimum"),
        F.max(delay).alias("maximum"),
        F.mean(delay).alias("mean"),
        F.percentile(delay, list(QUANTILES)).alias("quantiles"),
        F.count_if(F.col("placed") & ~F.col("paid")).alias("never_paid"),
    ]
    for above, up_to in buckets(timeout):
        over = F.lit(True) if above is None else delay > above
        under = F.lit(True) if up_to is None else delay <= up_to
        numbers.append(F.count_if(delay.isNotNull() & over & under).alias(f"above_{above}"))
    for each in timeouts:
        within = delay <= each.total_seconds()
        numbers += [
            F.count_if(within).alias(f"in_time_{each}"),
            F.count_if(~within).alias(f"late_{each}"),
        ]
    row = orders.agg(*numbers).first()
    assert row is not None
    return row.asDict()


def buckets(timeout: timedelta) -> list[tuple[int | None, int | None]]:
    """The histogram's edges; the timeout is one of them, so that no bucket is on both sides of it."""
    edges = sorted({*EDGES, int(timeout.total_seconds())})
    return list(zip([None, *edges], [*edges, None], strict=True))


def messages_of(events: DataFrame) -> Messages:
    from pyspark.sql import functions as F

    unreadable = F.col("kind").isNotNull() & F.col("order_id").isNull()
    rows = (
        events.groupBy("type", "kind")
        .agg(
            F.count(F.lit(1)).alias("read"),
            F.count_if("duplicate").alias("duplicates"),
            F.count_if(unreadable).alias("unreadable"),
        )
        .collect()
    )
    return Messages(
        read=sum(row["read"] for row in rows),
        duplicates=sum(row["duplicates"] for row in rows),
        unreadable=sum(row["unreadable"] for row in rows),
        of_other_types=sum(row["read"] for row in rows if row["kind"] is None),
        by_type={row["type"] or "": row["read"] for row in sorted(rows, key=lambda row: row["type"] or "")},
    )


def has_oddities(counted: dict[str, Any]) -> bool:
    return any(counted[name] for name in (*CONTRADICTIONS, "decided_otherwise"))


def examples_of(orders: DataFrame) -> dict[str, tuple[str, ...]]:
    """The first ids, alphabetically, of each contradiction and of the orders that were decided otherwise."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    name = F.when(F.col("outcome").isin(list(CONTRADICTIONS)), F.col("outcome")).when(
        F.col("decided_otherwise"), "decided_otherwise"
    )
    named = orders.select("order_id", name.alias("name")).where(F.col("name").isNotNull())
    place = F.row_number().over(Window.partitionBy("name").orderBy("order_id"))
    found: dict[str, tuple[str, ...]] = {}
    for row in (
        named.withColumn("place", place).where(F.col("place") <= EXAMPLES).orderBy("order_id").collect()
    ):
        found[row["name"]] = (*found.get(row["name"], ()), row["order_id"])
    return found


def summarised(
    counted: dict[str, Any],
    browse: Browse,
    timeout: timedelta,
    timeouts: Sequence[timedelta],
    messages: Messages,
    examples: dict[str, tuple[str, ...]],
    seconds: float,
) -> Summary:
    delay = Delay(
        payments=counted["payments"],
        before_order=counted["before_order"],
        minimum=counted["minimum"],
        maximum=counted["maximum"],
        mean=counted["mean"],
        quantiles={
            f"{level:.2f}": value for level, value in zip(QUANTILES, counted["quantiles"] or (), strict=False)
        },
        histogram=tuple(Bucket(above, up_to, counted[f"above_{above}"]) for above, up_to in buckets(timeout)),
    )
    recount = tuple(
        Recount(
            timeout_seconds=int(each.total_seconds()),
            paid_in_time=counted[f"in_time_{each}"],
            paid_late=counted[f"late_{each}"],
            never_paid=counted["never_paid"],
        )
        for each in timeouts
    )
    return Summary(
        source=redacted(browse.url),
        queue=browse.queue,
        timeout_seconds=int(timeout.total_seconds()),
        messages=messages,
        orders=counted["orders"],
        **{name: counted[name] for name in OUTCOMES},
        contradictions={name: counted[name] for name in CONTRADICTIONS},
        decided_otherwise=counted["decided_otherwise"],
        examples=examples,
        delay=delay,
        recount=recount,
        seconds=round(seconds, 1),
    )


def write(out: Path, summary: Summary) -> None:
    from warren.pipeline.jobs.order_timeouts_page import page

    (out / "summary.json").write_text(json.dumps(summary.as_dict(), indent=2) + "\n", encoding="utf-8")
    (out / "report.html").write_text(page(summary), encoding="utf-8")
