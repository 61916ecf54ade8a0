"""The job `flow`: rates, backlogs and their growth, use of the prefetch, advice, and a forecast of full queues.

It reads the streams to which applications and brokers publish the message events that they capture (published,
delivered, acknowledged, ...).
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from warren.core.command_output import write_line, write_table
from warren.pipeline import durations
from warren.pipeline.jobs.event_rows import events_of
from warren.pipeline.jobs.flow.aggregates import summary_of
from warren.pipeline.jobs.flow.facts import routes_of, steps_of
from warren.pipeline.jobs.flow.page import page as page
from warren.pipeline.jobs.flow.page import trend_words
from warren.pipeline.jobs.flow.summary import Limit, Options, Summary
from warren.pipeline.jobs.run_options import RunOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NAME = "flow"
HELP = "rates, backlogs, use of prefetch windows, advice, and when a queue is full"
DESCRIPTION = (
    "Rates, backlogs and their growth, use of prefetch windows, advice, and when a queue will be full."
)

UNITS = {"kB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--step",
        type=durations.duration_argument,
        default="1m",
        metavar="TIME",
        help="width of a step of time, between 10 and 120 of them (default: %(default)s)",
    )
    parser.add_argument(
        "--trend",
        type=durations.duration_argument,
        default="1h",
        metavar="TIME",
        help="period over which the trend is computed (default: %(default)s)",
    )
    parser.add_argument(
        "--limit",
        type=limit,
        metavar="N",
        help="limit of a queue in messages (100000) or bytes (2GB), to forecast when it is full",
    )


def own_options(parsed: argparse.Namespace) -> Options:
    return Options(parsed.step, parsed.trend, parsed.limit)


def limit(text: str) -> Limit:
    """Parse the value of `--limit`: a queue's maximum length in messages or bytes, for the forecast.

    :param text: number of messages (`100000`), or bytes with a unit (`500MB`)
    :raises ArgumentTypeError: if the text is neither, or zero
    """
    found = re.fullmatch(rf"(\d+)({'|'.join(UNITS)})?", text)
    if found is None or not int(found[1]):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a limit: write messages (100000) or bytes (500MB, 2GiB; {', '.join(UNITS)})"
        )
    if found[2] is None:
        return Limit(float(found[1]), "messages")
    return Limit(float(int(found[1]) * UNITS[found[2]]), "bytes")


def events(messages: DataFrame, options: RunOptions[Options]) -> DataFrame:
    """Return one row for each captured message event (published, delivered, acknowledged, ...); a batch of events that
    was published twice counts once.

    :param messages: messages with the columns of the data source `amqp`
    :param options: not used
    """
    return events_of(messages)


def tables(events: DataFrame, options: RunOptions[Options]) -> Mapping[str, DataFrame]:
    """Return the tables `steps` and `routes`.

    `steps` has counts of events for each second, queue and consumer. `routes` has, for each exchange and routing key,
    the queues from which such messages were delivered. In a continuous run several rows may have the same key; their
    counts add up.

    :param events: one row for each captured message event (published, delivered, acknowledged, ...)
    :param options: not used
    """
    return {"steps": steps_of(events), "routes": routes_of(events)}


streams = tables


def summarise(tables: Mapping[str, DataFrame], options: RunOptions[Options]) -> Summary:
    return summary_of(tables, options.own)


def show(summary: Summary) -> None:
    """Print the rates and backlogs of the queues, and the measures recommended against growing or persisting
    backlogs.
    """
    numbers = ("in/s", "out/s", "redelivered", "ready", "trend/s", "window used", "idle")
    rows = []
    for queue in summary.queues:
        shares = ("-" if each is None else f"{each:.0%}" for each in (queue.window_used, queue.idle))
        row = (
            queue.queue,
            f"{queue.published_a_second:,.1f}",
            f"{queue.settled_a_second:,.1f}",
            f"{queue.redelivered_share:.1%}",
            "-" if queue.ready is None else f"{queue.ready:,}",
            "a stream" if queue.stream else trend_words(queue.growth),
            *shares,
        )
        rows.append(row)
    title = f"{summary.events:,} events in {summary.seconds:,.0f} s"
    write_table(("queue", *numbers), rows, right=numbers, title=title)
    for queue in summary.queues:
        for measure in queue.measures:
            if measure.kind != "nothing":
                write_line(f"{queue.queue}: {measure.words}")
    if summary.missing:
        write_line(f"capture lost {summary.missing:,} events: backlogs may be wrong by as many")
