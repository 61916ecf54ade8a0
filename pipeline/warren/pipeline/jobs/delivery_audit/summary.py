"""Result types and computation of the job `delivery-audit`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from warren.pipeline.jobs.delivery_audit import capture_gaps
from warren.pipeline.jobs.delivery_audit.findings import KINDS, findings_of
from warren.pipeline.jobs.delivery_audit.losses import PLACES, Rules
from warren.pipeline.jobs.delivery_audit.outcomes import FATES, outcomes_of
from warren.pipeline.jobs.delivery_audit.queue_backlogs import Backlog, backlogs_of, has_waiting_messages

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

LEVELS = (0.50, 0.90, 0.99)
ACCURACY = 10_000
"""Accuracy argument of `percentile_approx`: the rank of a percentile is off by at most 1/10,000 of the values."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
EXAMPLES = 20
QUEUES = 100
GAPS = 20


@dataclass(frozen=True)
class Capture:
    """Number of captured message events (published, delivered, acknowledged, ...) and of their sources, and number of
    events that did not reach the stream.

    A source is an application or broker that captures events and numbers them from 1 on.
    """

    events: int
    sources: int
    stopped: int
    """Number of sources (applications or brokers that capture events) that reported their end. The last events of
    another source may be missing without being noticed, because only a gap before a later event is."""
    missing: int
    """Number of lost events: numbers missing between those that each source (an application or broker)
    gives its events."""
    without_id: int
    """Number of publications without a message id. Such messages cannot be followed."""
    first_at: str | None
    last_at: str | None
    gaps: tuple[Gap, ...]
    """The gaps in the event numbers of a source (an application or broker) with the most missing events."""


@dataclass(frozen=True)
class Gap:
    """Gap in the captured events of one source (an application or broker that captures events).

    It lies between the source's event at `since` (None if the gap is at the beginning) and the one at `until`.
    """

    source: str
    app: str | None
    missing: int
    since: str | None
    until: str


@dataclass(frozen=True)
class Messages:
    """Numbers of messages by what happened to them. A message counts once, even if it was in several queues.

    A message that was dead-lettered, expired or rejected counts as such whatever happened to it later, so one message
    may be in several of the numbers.
    """

    published: int
    confirmed: int
    delivered: int
    acknowledged: int
    dead_lettered: int
    expired: int
    rejected: int
    returned: int
    refused: int
    redelivered: int
    under_way: int
    """Messages without an outcome so far, of the last part of the captured time. They are not judged, because events
    about them may still follow."""
    unpublished: int
    """Messages of which other events were captured, but not the publication."""


@dataclass(frozen=True)
class Latency:
    """Quantiles and maximum of a latency in seconds, over `count` messages. The quantiles' keys are levels such as
    "0.50".
    """

    count: int
    quantiles: dict[str, float]
    maximum: float | None


@dataclass(frozen=True)
class Queue:
    """Outcomes and latencies of one queue."""

    queue: str
    stream: bool
    """True for a stream. Its latencies are empty, because a reader of a stream may read a message at any time."""
    messages: int
    acknowledged: int
    redelivered: int
    findings: dict[str, int]
    to_delivery: Latency
    """Time from publication to the first delivery."""
    to_acknowledgement: Latency
    """Time from the first delivery to the first acknowledgement."""


@dataclass(frozen=True)
class Example:
    """One message of a kind of finding, and where it was published and found."""

    message_id: str
    exchange: str | None
    """Exchange and routing key of the publication; None if it was not captured."""
    routing_key: str | None
    queue: str | None
    """Queue of the finding, the first by name if there are several; None if the message reached no queue."""


@dataclass(frozen=True)
class Summary:
    """Result of the audit: findings, and outcomes and latencies by queue.

    A message counts as lost once for each queue in which, or on the way to which, it was lost.
    """

    settle_seconds: float
    late_seconds: float
    capture: Capture
    messages: Messages
    stays: dict[str, int]
    """Number of messages by outcome (a key of `FATES`). A message counts once for each queue that it was in, or once if
    it reached none."""
    findings: dict[str, int]
    examples: dict[str, tuple[Example, ...]]
    """Some messages of each kind of finding, in the order of their publication."""
    places: dict[str, int]
    """Number of lost messages by the place of the loss, a key of `PLACES`."""
    lost_after_confirm: int
    queues: tuple[Queue, ...]
    """The queues with the most messages."""
    queues_in_all: int
    backlogs: tuple[Backlog, ...]
    """Queues with a backlog, and advice. Computed only if some message waits: it has no outcome, and is not lost."""

    @property
    def clean(self) -> bool:
        """True if there is no finding and no captured event is missing."""
        return not self.capture.missing and not any(self.findings.values())

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


TableWriter = Callable[["DataFrame", str], "DataFrame"]
"""Function that writes a frame as a table of the given name, and returns the frame as read from disk."""


def summary_of(
    events: DataFrame, facts: DataFrame, capture: DataFrame, rules: Rules, write_and_reload: TableWriter
) -> Summary:
    """Compute the summary of the audit, and write the tables `messages` and `findings`.

    :param facts: one row for each message and queue with counts and times of its events, from `facts.facts_of`
    :param capture: counts and number ranges of each source's events, from `capture_gaps.capture_of`
    :param rules: parameters of the audit
    :param write_and_reload: writes a frame as a table of the given name, and returns it as read from disk
    """
    from pyspark.sql import functions as F

    messages = write_and_reload(outcomes_of(facts.where(F.col("message_id").isNotNull()), events), "messages")
    stays = stays_of(messages)
    # One horizon for all checks.
    end = last_of(capture) - rules.settle // timedelta(microseconds=1)
    horizon = F.timestamp_micros(F.lit(end))
    completeness, unobserved = completeness_of(events, capture)
    fates = [fate for fate, count in stays.items() if count]
    findings = write_and_reload(findings_of(messages, unobserved, rules, horizon, fates), "findings")
    counted = findings.groupBy("finding", "place").agg(
        F.count(F.lit(1)).alias("count"), F.count("confirmed_at").alias("confirmed")
    )
    found = counted.collect()
    lost = [row for row in found if row["finding"] == "lost"]
    queues, queues_in_all = queues_of(messages, findings)
    has_waiting = ("waiting" in fates or "nowhere" in fates) and has_waiting_messages(messages, findings)
    return Summary(
        settle_seconds=rules.settle.total_seconds(),
        late_seconds=rules.late.total_seconds(),
        capture=completeness,
        messages=messages_of(messages, horizon),
        stays=stays,
        findings={kind: sum(row["count"] for row in found if row["finding"] == kind) for kind in KINDS},
        examples=examples_of(findings, [row["finding"] for row in found]),
        places={place: sum(row["count"] for row in lost if row["place"] == place) for place in PLACES},
        lost_after_confirm=sum(row["confirmed"] for row in lost),
        queues=queues,
        queues_in_all=queues_in_all,
        backlogs=backlogs_of(events, write_and_reload) if has_waiting else (),
    )


def last_of(rows: DataFrame) -> int:
    """Return the end of the captured time in microseconds since 1970: the latest `captured_at` in the table
    `capture`.
    """
    from pyspark.sql import functions as F

    return rows.agg(F.unix_micros(F.max("captured_at")).alias("last")).collect()[0]["last"] or 0


def completeness_of(events: DataFrame, pieces: DataFrame) -> tuple[Capture, DataFrame | None]:
    """Return the numbers of captured and missing events, and the periods (`queue`, `since`, `until`) in which events of
    a queue may be missing; None instead of the periods if no event is missing.

    :param events: all captured message events (published, delivered, acknowledged, ...)
    :param pieces: the table `capture`, with counts and number ranges of each source's events
    """
    from pyspark.sql import functions as F

    of_sources = pieces.groupBy("source").agg(
        F.sum("events").alias("events"),
        F.max("last").alias("last"),
        F.max("stopped").alias("stopped"),
        F.sum("without_id").alias("without_id"),
        F.min("began").alias("began"),
        F.max("ended").alias("ended"),
    )
    row = of_sources.agg(
        F.count(F.lit(1)).alias("sources"),
        F.sum("events").alias("events"),
        F.sum("last").alias("numbered"),
        F.count_if("stopped").alias("stopped"),
        F.sum("without_id").alias("without_id"),
        F.unix_micros(F.min("began")).alias("began"),
        F.unix_micros(F.max("ended")).alias("ended"),
    ).collect()[0]
    missing = (row["numbered"] or 0) - (row["events"] or 0)
    largest: tuple[Gap, ...] = ()
    unobserved = None
    if missing:
        every = capture_gaps.gaps_of(events, capture_gaps.incomplete_of(pieces))
        largest, unobserved = largest_of(every), capture_gaps.unobserved_of(pieces, every)
    completeness = Capture(
        events=row["events"] or 0,
        sources=row["sources"],
        stopped=row["stopped"],
        missing=missing,
        without_id=row["without_id"] or 0,
        first_at=text(row["began"]),
        last_at=text(row["ended"]),
        gaps=largest,
    )
    return completeness, unobserved


def largest_of(every: DataFrame) -> tuple[Gap, ...]:
    """Return the `GAPS` gaps in captured events with the most missing events.

    :param every: one row for each gap, from `capture_gaps.gaps_of`
    """
    from pyspark.sql import functions as F

    times = [F.unix_micros(name).alias(name) for name in ("since", "until")]
    largest = (
        every.orderBy(F.desc("missing"), "source", "until")
        .limit(GAPS)
        .select("source", "app", "missing", *times)
    )
    return tuple(
        Gap(row["source"], row["app"], row["missing"], text(row["since"]), text(row["until"]) or "")
        for row in largest.collect()
    )


def messages_of(messages: DataFrame, horizon: Column) -> Messages:
    """Count messages by what happened to them, each message once, whatever the number of queues that it was in.

    :param horizon: end of the time that is judged; later messages without an outcome count as `under_way`
    """
    from pyspark.sql import functions as F

    open_ends = F.col("fate").isin("in_hand", "waiting", "nowhere")
    flags: dict[str, Column] = {
        "published": F.col("published_at").isNotNull(),
        "confirmed": F.col("confirmed_at").isNotNull(),
        "delivered": F.col("delivered_at").isNotNull(),
        "redelivered": F.col("redeliveries") > 0,
        "under_way": open_ends & (F.coalesce("delivered_at", "published_at") > horizon),
        "unpublished": F.col("published_at").isNull(),
        "dead_lettered": F.col("dead_letters_sdk") + F.col("dead_letters_broker") > 0,
        "expired": F.col("expiries") > 0,
        "rejected": F.col("rejects") > 0,
        **{fate: F.col("fate") == fate for fate in ("acknowledged", "returned", "refused")},
    }
    each = messages.groupBy("message_id").agg(*[F.max(flag).alias(name) for name, flag in flags.items()])
    row = each.agg(*[F.count_if(name).alias(name) for name in flags]).collect()[0]
    return Messages(**row.asDict())


def stays_of(messages: DataFrame) -> dict[str, int]:
    """Return, for each outcome (a key of `FATES`), its number of rows in the table `messages`, which has one row for
    each message and queue.
    """
    counted = {row["fate"]: row["count"] for row in messages.groupBy("fate").count().collect()}
    return {fate: counted.get(fate, 0) for fate in FATES}


def examples_of(findings: DataFrame, there: Collection[str]) -> dict[str, tuple[Example, ...]]:
    """Return the `EXAMPLES` earliest messages of each kind of finding, by kind.

    :param there: kinds of findings that occur; the others get no examples
    """
    from pyspark.sql import functions as F

    found: dict[str, tuple[Example, ...]] = dict.fromkeys(KINDS, ())
    for kind in set(there):
        rows = (
            findings.where(F.col("finding") == kind)
            .groupBy("message_id")
            .agg(
                F.min("published_at").alias("at"),
                F.min(F.struct("queue", "exchange", "routing_key")).alias("first"),
            )
            .orderBy(F.asc_nulls_last("at"), "message_id")
            .limit(EXAMPLES)
            .select("message_id", "first.exchange", "first.routing_key", "first.queue")
            .collect()
        )
        found[kind] = tuple(Example(**row.asDict()) for row in rows)
    return found


def queues_of(messages: DataFrame, findings: DataFrame) -> tuple[tuple[Queue, ...], int]:
    """Return the outcomes and latencies of the `QUEUES` queues with the most messages, and the number of all queues.

    :param messages: one row for each message and queue, with times, counts and outcome, from `outcomes.outcomes_of`
    :param findings: one row for each finding, from `findings.findings_of`
    """
    from pyspark.sql import functions as F

    spans = {
        "to_delivery": span("published_at", "delivered_at"),
        "to_acknowledgement": span("delivered_at", "acked_at"),
    }
    numbers = (
        messages.where(F.col("queue").isNotNull())
        .groupBy("queue")
        .agg(
            F.bool_or("stream").alias("stream"),
            F.count(F.lit(1)).alias("messages"),
            F.count_if(F.col("fate") == "acknowledged").alias("acknowledged"),
            F.count_if(F.col("redeliveries") > 0).alias("redelivered"),
            *[
                column
                for name, seconds in spans.items()
                for column in (
                    F.count(seconds).alias(f"{name}_count"),
                    F.percentile_approx(seconds, list(LEVELS), ACCURACY).alias(f"{name}_quantiles"),
                    F.max(seconds).alias(f"{name}_maximum"),
                )
            ],
        )
    )
    problems = (
        findings.where(F.col("queue").isNotNull())
        .groupBy("queue")
        .agg(*[F.count_if(F.col("finding") == kind).alias(kind) for kind in KINDS])
    )
    both = numbers.join(problems, "queue", "left")
    rows = both.orderBy(F.desc("messages"), "queue").limit(QUEUES).collect()
    in_all = len(rows) if len(rows) < QUEUES else numbers.count()
    return tuple(queue(row.asDict()) for row in rows), in_all


def queue(row: dict[str, Any]) -> Queue:
    """Convert a row with one queue's counts and quantiles to a `Queue`.

    :param row: values by column name, as `queues_of` computes them: a count for each kind of finding, and for both
        latencies the columns `..._count`, `..._quantiles` and `..._maximum`
    """

    def latency(name: str) -> Latency:
        found: Sequence[float] = row[f"{name}_quantiles"] or ()
        quantiles = {f"{level:.2f}": value for level, value in zip(LEVELS, found, strict=False)}
        return Latency(row[f"{name}_count"], quantiles, row[f"{name}_maximum"])

    return Queue(
        queue=row["queue"],
        stream=row["stream"],
        messages=row["messages"],
        acknowledged=row["acknowledged"],
        redelivered=row["redelivered"],
        findings={kind: row[kind] or 0 for kind in KINDS},
        to_delivery=latency("to_delivery"),
        to_acknowledgement=latency("to_acknowledgement"),
    )


def span(since: str, until: str) -> Column:
    """Return the column with the seconds between two times of a message; null for a message in a stream.

    :param since: name of the column with the earlier time
    :param until: name of the column with the later time
    """
    from pyspark.sql import functions as F

    return F.when(~F.col("stream"), (F.unix_micros(until) - F.unix_micros(since)) / 1_000_000)


def text(at: int | None) -> str | None:
    """Format microseconds since 1970 as ISO 8601 in UTC; None remains None."""
    return None if at is None else (EPOCH + timedelta(microseconds=at)).isoformat()
