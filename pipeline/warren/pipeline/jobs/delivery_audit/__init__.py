"""The job `delivery-audit`: the outcome of every message, and which were lost, duplicated, reordered or late.

It reads the message events that applications and brokers capture to a stream.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING

from warren.pipeline import durations
from warren.pipeline.jobs.batch_run import spark_path, write_and_reload
from warren.pipeline.jobs.delivery_audit.capture_gaps import capture_of
from warren.pipeline.jobs.delivery_audit.facts import facts_of
from warren.pipeline.jobs.delivery_audit.losses import PLACES, Rules
from warren.pipeline.jobs.delivery_audit.page import page as page
from warren.pipeline.jobs.delivery_audit.summary import Summary, summary_of
from warren.pipeline.jobs.event_rows import events_of
from warren.pipeline.report.formatting import brief

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from rich.console import Console

NAME = "delivery-audit"
HELP = "lost, duplicated, reordered and late messages, and latencies by queue"
DESCRIPTION = (
    "The outcome of every message, from the events that applications and brokers capture: published, confirmed, "
    "delivered, acknowledged, dead-lettered, expired; which were lost, duplicated, reordered or late; and where capture "
    "itself has gaps."
)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--late",
        type=durations.duration_argument,
        default="1m",
        help="a message acknowledged later than this after it was published is late (default: %(default)s)",
    )
    parser.add_argument(
        "--settle",
        type=durations.duration_argument,
        default="10s",
        help="ignore the last part of the captured time, because more events of its messages may follow "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--unordered",
        type=names,
        default=(),
        metavar="NAME[,NAME]",
        help="exchanges and queues in which messages may overtake each other: delays, priorities, headers",
    )


def names(text: str) -> tuple[str, ...]:
    """Split a list of names."""
    return tuple(text.split(","))


def events(messages: DataFrame, options: argparse.Namespace) -> DataFrame:
    """Return one row for each event."""
    return events_of(messages)


def tables(events: DataFrame, options: argparse.Namespace) -> Mapping[str, DataFrame]:
    """Return `facts`, a row for each message and queue, and `capture`, a row for each part of a source's sequence."""
    return {"facts": facts_of(events), "capture": capture_of(events)}


def streams(events: DataFrame, options: argparse.Namespace) -> Mapping[str, DataFrame]:
    """Return no tables: Spark would drop rows behind its watermark, and sources may be any time apart."""
    return {}


def summarise(tables: Mapping[str, DataFrame], options: argparse.Namespace) -> Summary:
    """Write `messages` and `findings`, and in a continuous run the tables, and return the numbers computed from them."""
    folder = spark_path(options.out)
    made = tables if "facts" in tables else made_of(tables, options, folder)
    rules = Rules(options.settle, options.late, options.unordered)
    return summary_of(
        tables["events"],
        made["facts"],
        made["capture"],
        rules,
        lambda frame, name: write_and_reload(frame, f"{folder}/{name}"),
    )


def made_of(
    given: Mapping[str, DataFrame], options: argparse.Namespace, folder: str
) -> Mapping[str, DataFrame]:
    """Write the job's tables from the events."""
    return {
        name: write_and_reload(frame, f"{folder}/{name}")
        for name, frame in tables(given["events"], options).items()
    }


def show(summary: Summary, console: Console) -> None:
    """Print the findings, the backlogs and the latencies."""
    from rich.table import Table

    numbers = summary.messages
    console.print(
        f"{numbers.published:,} messages published, {numbers.delivered:,} delivered, {numbers.acknowledged:,} acknowledged"
    )
    for kind, count in summary.findings.items():
        ids = summary.examples[kind]
        named = f": {', '.join(ids[:5])}{', …' if len(ids) > 5 else ''}" if ids else ""
        console.print(f"{kind + ':':<12}{count:,}{named}", soft_wrap=True)
    for place, count in summary.places.items():
        if count:
            console.print(f"lost {PLACES[place]}: {count:,}")
    if summary.capture.missing:
        console.print(f"capture is incomplete: {summary.capture.missing:,} events are missing")
    for backlog in summary.backlogs[:10]:
        words = " ".join(measure.words for measure in backlog.measures)
        console.print(f"{backlog.queue}: {backlog.ready:,} ready. {words}", soft_wrap=True)
    table = Table(title="queues", title_justify="left")
    table.add_column("queue")
    for column in (
        "messages",
        "acknowledged",
        "to delivery: half",
        "99 %",
        "to acknowledgement: half",
        "99 %",
    ):
        table.add_column(column, justify="right")
    for queue in summary.queues[:10]:
        spans = [
            brief(each.quantiles[level]) if each.quantiles else ""
            for each in (queue.to_delivery, queue.to_acknowledgement)
            for level in ("0.50", "0.99")
        ]
        table.add_row(queue.queue, f"{queue.messages:,}", f"{queue.acknowledged:,}", *spans)
    console.print(table)
