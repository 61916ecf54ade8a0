"""The job `order-timeouts`: orders that were paid in time, late or never, and the effect of other payment timeouts.

It reads a stream or a queue that receives a copy of every message about an order.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING

from warren.core.command_output import write_line, write_table
from warren.pipeline import durations
from warren.pipeline.jobs.order_timeouts.facts import (
    CONTRADICTIONS,
    events_of,
    facts_of,
    merged_facts,
    with_outcome,
)
from warren.pipeline.jobs.order_timeouts.page import page as page
from warren.pipeline.jobs.order_timeouts.summary import Options, Summary, summary_of
from warren.pipeline.jobs.run_options import RunOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NAME = "order-timeouts"
HELP = "orders paid in time, late or never, and the effect of other timeouts"
DESCRIPTION = "Orders paid in time, late or never; the delay of payments; and the effect that other timeouts would have had."


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--timeout",
        type=durations.duration_argument,
        default="30m",
        help="timeout after which the workflow cancels an order (default: %(default)s)",
    )
    parser.add_argument(
        "--recount",
        type=duration_list,
        default="10m,20m,60m,120m",
        metavar="LIST",
        help="other timeouts to compute the outcomes for (default: %(default)s)",
    )
    parser.add_argument(
        "--settle",
        type=lambda text: durations.duration_argument(text, zero=True),
        default="30s",
        help="with --continuous: time without a new message after which an order is settled (default: %(default)s)",
    )
    parser.add_argument(
        "--remember",
        type=durations.duration_argument,
        default="30d",
        help="with --continuous: time for which a decided order is kept for corrections (default: %(default)s)",
    )


def own_options(parsed: argparse.Namespace) -> Options:
    return Options(parsed.timeout, parsed.recount, parsed.settle, parsed.remember)


def duration_list(text: str) -> tuple[timedelta, ...]:
    """Parse a comma-separated list of durations: the value of `--recount`, other payment timeouts under which the
    orders are counted again.

    :raises ArgumentTypeError: if one of them is not a duration
    """
    return tuple(durations.duration_argument(word) for word in text.split(","))


def events(messages: DataFrame, options: RunOptions[Options]) -> DataFrame:
    """Return one row for each message, with the fact that it states about an order: placed, paid, cancelled or
    refunded.

    :param messages: messages with the columns of the data source `amqp`
    :param options: not used
    """
    return events_of(messages)


def tables(events: DataFrame, options: RunOptions[Options]) -> Mapping[str, DataFrame]:
    """Return the table `orders`: one row for each order, with its times and outcome.

    :param events: one row for each message, from the function `events`
    :param options: options of the run
    """
    from pyspark.sql import functions as F

    orders = merged_facts(facts_of(events)).withColumns(
        {"revision": F.lit(1), "settled_at": F.current_timestamp()}
    )
    return {"orders": with_outcome(orders, options.own.timeout)}


def streams(events: DataFrame, options: RunOptions[Options]) -> Mapping[str, DataFrame]:
    """Return `orders` as a streaming frame.

    It has a row for each order when no new message about the order has arrived for some time, and one more row whenever
    later messages change the order.

    :param events: one row for each message, from the function `events`
    :param options: options of the run
    """
    from warren.pipeline.jobs.order_timeouts.streaming_outcomes import settled

    rows = settled(facts_of(events), options.own.timeout, options.own.settle, options.own.remember)
    return {"orders": with_outcome(rows, options.own.timeout)}


def summarise(tables: Mapping[str, DataFrame], options: RunOptions[Options]) -> Summary:
    return summary_of(tables["events"], tables["orders"], options.own.timeout, options.own.recount)


def show(summary: Summary) -> None:
    """Print the numbers of orders paid in time, late and never, the same under the other timeouts of `--recount`, and
    the orders whose messages contradict each other.
    """
    numbers = ("paid in time", "paid late", "never paid")
    decided = (f"{summary.paid_in_time:,}", f"{summary.paid_late:,}", f"{summary.cancelled:,}")
    rows = [(f"{durations.format_duration(summary.timeout_seconds)}, as decided", *decided)]
    for each in summary.recount:
        recounted = (f"{each.paid_in_time:,}", f"{each.paid_late:,}", f"{each.never_paid:,}")
        rows.append((f"{durations.format_duration(each.timeout_seconds)}, recounted", *recounted))
    title = f"{summary.orders:,} orders from {summary.messages.read:,} messages"
    write_table(("timeout", *numbers), rows, right=numbers, title=title)
    for name, count in summary.contradictions.items():
        if count:
            write_line(f"in doubt: {count:,} {CONTRADICTIONS[name]}")
    if without := summary.recount[0].without_times:
        write_line(f"times unknown, in no recount: {without:,}")
    if summary.undecided:
        write_line(f"not decided yet: {summary.undecided:,}")
    if summary.decided_otherwise:
        write_line(f"outcome differs from the times in the orders: {summary.decided_otherwise:,}")
