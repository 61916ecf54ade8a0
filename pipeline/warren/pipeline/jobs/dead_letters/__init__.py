"""The job `dead-letters`: statistics of dead-lettered messages by queue and reason, with the number of times that a
message was dead-lettered (its deaths), the delay since publishing, and bursts.

It reads a dead-letter queue, or streams to which dead letters are routed.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING

from warren.core.command_output import write_line, write_table
from warren.pipeline import durations
from warren.pipeline.jobs.dead_letters.aggregates import summary_of
from warren.pipeline.jobs.dead_letters.facts import letters_of
from warren.pipeline.jobs.dead_letters.page import page as page
from warren.pipeline.jobs.dead_letters.summary import BurstRule, Summary
from warren.pipeline.jobs.job import EVENTS
from warren.pipeline.jobs.run_options import RunOptions
from warren.pipeline.report.formatting import brief

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NAME = "dead-letters"
HELP = "dead letters by queue, reason, frequency, age and burst"
DESCRIPTION = "Which messages died, in which queue, why, how often, how long after they were published, and in which bursts."


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--burst-gap",
        type=durations.duration_argument,
        default="10s",
        metavar="TIME",
        help="a longer pause without a death ends a burst (default: %(default)s)",
    )
    parser.add_argument(
        "--burst-least",
        type=at_least_two,
        default=10,
        metavar="N",
        help="minimum number of deaths of a burst (default: %(default)s)",
    )
    parser.add_argument(
        "--burst-of",
        choices=("queue", "reason"),
        default="queue",
        help="group deaths by reason and queue, or by reason alone (default: %(default)s)",
    )


def own_options(parsed: argparse.Namespace) -> BurstRule:
    return BurstRule(parsed.burst_gap, parsed.burst_least, parsed.burst_of)


def at_least_two(text: str) -> int:
    """Parse the value of `--burst-least`: the number of deaths (dead-letterings) at short intervals from which on they
    count as a burst.

    :raises ArgumentTypeError: if the text is not a number, or the number is below 2
    """
    try:
        count = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if count < 2:
        raise argparse.ArgumentTypeError("a burst has at least 2 deaths")
    return count


def events(messages: DataFrame, options: RunOptions[BurstRule]) -> DataFrame:
    """Return one row for each dead letter, with queue, reason and times of its deaths (dead-letterings).

    :param messages: messages with the columns of the data source `amqp`
    :param options: not used
    """
    return letters_of(messages)


def tables(events: DataFrame, options: RunOptions[BurstRule]) -> Mapping[str, DataFrame]:
    """Return an empty mapping: the job has no tables besides `events`, from which the summary is computed.

    :param events: not used, nor are `options`
    """
    return {}


streams = tables


def summarise(tables: Mapping[str, DataFrame], options: RunOptions[BurstRule]) -> Summary:
    return summary_of(tables[EVENTS], options.own)


def show(summary: Summary) -> None:
    """Print the queues and reasons for which the most messages were dead-lettered, and the largest bursts of dead
    letters.
    """
    numbers = ("deaths", "messages", "half within", "90 % within")
    rows = []
    for place in summary.places:
        late = ("-" if each is None else brief(each) for each in (place.median_after, place.p90_after))
        rows.append((place.queue, place.reason, f"{place.deaths:,}", f"{place.messages:,}", *late))
    title = f"{summary.deaths:,} deaths of {summary.messages:,} messages"
    write_table(("queue", "reason", *numbers), rows, right=numbers, title=title)
    for burst in summary.largest_bursts:
        where = burst.reason if burst.queue is None else f"{burst.reason} in {burst.queue}"
        write_line(f"burst: {burst.deaths:,} {where} in {brief(burst.seconds)} from {burst.began} on")
    if summary.bursts > len(summary.largest_bursts):
        write_line(f"and {summary.bursts - len(summary.largest_bursts):,} smaller bursts")
    if summary.unexplained:
        write_line(f"{summary.unexplained:,} messages have no header about a death")
