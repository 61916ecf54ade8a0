"""The job `delivery-audit`: the outcome of every message, and which were lost, duplicated, reordered or late.

It reads the streams to which applications and brokers publish the message events that they capture (published,
delivered, acknowledged, ...).
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING

from warren.core.command_output import write_line, write_table
from warren.core.text_escapes import escape_value
from warren.pipeline import durations
from warren.pipeline.jobs.batch_run import spark_path, write_and_reload
from warren.pipeline.jobs.delivery_audit.capture_gaps import capture_of
from warren.pipeline.jobs.delivery_audit.facts import facts_of
from warren.pipeline.jobs.delivery_audit.losses import PLACES, Rules
from warren.pipeline.jobs.delivery_audit.page import page as page
from warren.pipeline.jobs.delivery_audit.summary import Summary, summary_of
from warren.pipeline.jobs.event_rows import events_of
from warren.pipeline.jobs.run_options import RunOptions
from warren.pipeline.report.formatting import brief

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

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


def own_options(parsed: argparse.Namespace) -> Rules:
    return Rules(parsed.settle, parsed.late, parsed.unordered)


def names(text: str) -> tuple[str, ...]:
    """Split a comma-separated list of exchange and queue names: the value of `--unordered`, those in which messages may
    overtake each other.
    """
    return tuple(text.split(","))


def events(messages: DataFrame, options: RunOptions[Rules]) -> DataFrame:
    """Return one row for each captured message event (published, delivered, acknowledged, ...); a batch of events that
    was published twice counts once.

    :param messages: messages with the columns of the data source `amqp`
    :param options: not used
    """
    return events_of(messages)


def tables(events: DataFrame, options: RunOptions[Rules]) -> Mapping[str, DataFrame]:
    """Return the tables `facts` and `capture`.

    `facts` has a row for each message and queue, with counts and times of the message's events there. `capture` has a
    row for each thousand consecutive events of a source (an application or broker that captures events and numbers
    them), by which lost events are found.

    :param events: one row for each captured message event (published, delivered, acknowledged, ...)
    :param options: not used
    """
    return {"facts": facts_of(events), "capture": capture_of(events)}


def streams(events: DataFrame, options: RunOptions[Rules]) -> Mapping[str, DataFrame]:
    """Return an empty mapping, so a continuous run writes only the events continuously and derives the tables for each
    summary.

    A stateful streaming query would drop events behind its watermark, and there is no suitable watermark: events of two
    applications or brokers may arrive any time apart.

    :param events: not used, nor are `options`
    """
    return {}


def summarise(tables: Mapping[str, DataFrame], options: RunOptions[Rules]) -> Summary:
    """Write the tables `messages` and `findings` and return the summary computed from them.

    A continuous run has only the events, so `facts` and `capture` are written here as well.

    :param tables: frames that read the written tables `events` and, in a batch run, `facts` and `capture`
    :param options: options of the run
    """
    folder = spark_path(options.out)
    made = tables if "facts" in tables else made_of(tables, options, folder)
    return summary_of(
        tables["events"],
        made["facts"],
        made["capture"],
        options.own,
        lambda frame, name: write_and_reload(frame, f"{folder}/{name}"),
    )


def made_of(
    given: Mapping[str, DataFrame], options: RunOptions[Rules], folder: str
) -> Mapping[str, DataFrame]:
    """Derive the tables `facts` and `capture` from the table `events`, write them as Parquet files, and return frames
    that read these files, by the table's name.

    :param given: written tables by name, of which only `events` is used
    :param options: options of the run; not used
    :param folder: URL of the output folder, in which each table gets a folder of its own
    """
    return {
        name: write_and_reload(frame, f"{folder}/{name}")
        for name, frame in tables(given["events"], options).items()
    }


def show(summary: Summary) -> None:
    """Print the numbers of lost, duplicated, reordered and late messages, and the backlogs and latencies of the
    queues.
    """
    counts = summary.messages
    write_line(
        f"{counts.published:,} messages published, {counts.delivered:,} delivered, {counts.acknowledged:,} acknowledged"
    )
    for kind, count in summary.findings.items():
        ids = [escape_value(example.message_id) for example in summary.examples[kind]]
        named = f": {', '.join(ids[:5])}{', ...' if len(ids) > 5 else ''}" if ids else ""
        write_line(f"{kind + ':':<12}{count:,}{named}")
    for place, count in summary.places.items():
        if count:
            write_line(f"lost {PLACES[place]}: {count:,}")
    if summary.capture.missing:
        write_line(f"capture is incomplete: {summary.capture.missing:,} events are missing")
    for backlog in summary.backlogs[:10]:
        words = " ".join(measure.words for measure in backlog.measures)
        write_line(f"{backlog.queue}: {backlog.ready:,} ready. {words}")
    numbers = ("messages", "acknowledged", "to delivery: half", "99 %", "to acknowledgement: half", "99 %")
    rows = []
    for queue in summary.queues[:10]:
        spans = [
            brief(each.quantiles[level]) if each.quantiles else ""
            for each in (queue.to_delivery, queue.to_acknowledgement)
            for level in ("0.50", "0.99")
        ]
        rows.append((queue.queue, f"{queue.messages:,}", f"{queue.acknowledged:,}", *spans))
    write_table(("queue", *numbers), rows, right=numbers, title="queues")
