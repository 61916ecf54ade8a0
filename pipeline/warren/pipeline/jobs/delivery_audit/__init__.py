"""The job `delivery-audit`: what became of every message, and which were lost, duplicated, reordered or late.

It reads the life-cycle events that applications and brokers capture to a stream.
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
HELP = "which messages were lost, duplicated, reordered or late; and how long they take, queue by queue"
DESCRIPTION = (
    "What became of every message, from the events that applications and brokers capture: published, confirmed, "
    "delivered, acknowledged, dead-lettered, expired; which were lost, duplicated, reordered or late; and where capture "
    "itself has gaps."
)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--late",
        type=durations.duration_argument,
        default="1m",
        help="what is acknowledged later than so long after its publication is late (default: %(default)s)",
    )
    parser.add_argument(
        "--settle",
        type=durations.duration_argument,
        default="10s",
        help="nothing is judged by the last so long of what was captured: the rest may be on its way "
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
    return tuple(text.split(","))


def events(messages: DataFrame, options: argparse.Namespace) -> DataFrame:
    """One row an event."""
    return events_of(messages)


def tables(events: DataFrame, options: argparse.Namespace) -> Mapping[str, DataFrame]:
    """`facts`: a row a message and queue; `capture`: a row a piece of a source's sequence."""
    return {"facts": facts_of(events), "capture": capture_of(events)}


def streams(events: DataFrame, options: argparse.Namespace) -> Mapping[str, DataFrame]:
    """None: Spark leaves out of such a table what its watermark has passed, and sources may be any time apart."""
    return {}


def summarise(tables: Mapping[str, DataFrame], options: argparse.Namespace) -> Summary:
    """Writes `messages` and `findings` beside the tables, anew each time, and reads its numbers from there.

    Of a run that goes on, the tables too.
    """
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
    return {
        name: write_and_reload(frame, f"{folder}/{name}")
        for name, frame in tables(given["events"], options).items()
    }


def show(summary: Summary, console: Console) -> None:
    """What was found, where, and how long the messages took."""
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
        console.print(f"{backlog.queue}: {backlog.ready:,} wait. {words}", soft_wrap=True)
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
