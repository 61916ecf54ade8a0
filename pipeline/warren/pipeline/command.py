"""`warren pipeline JOB`: runs one of the Spark jobs, here or on a cluster."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from warren.command import Exit, UsageError
from warren.pipeline import durations
from warren.pipeline.browse import Browse
from warren.pipeline.durations import words
from warren.pipeline.errors import PipelineError
from warren.pipeline.session import check_spark

if TYPE_CHECKING:
    from warren.pipeline.jobs.order_timeouts import Summary


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} --help)")


def main(arguments: Sequence[str]) -> int:
    """Run a job and return the exit status.

    :raises UsageError: for wrong arguments, a queue that cannot be read, a missing Java or pyspark
    """
    options = parser().parse_args(arguments)
    if options.job is None:
        raise UsageError("name a job: order-timeouts (see warren pipeline --help)")
    try:
        Browse(options.source, options.queue, options.read_timeout)
        if options.out.exists() and not options.out.is_dir():
            raise UsageError(f"--out {options.out} is not a folder")
        check_spark()
        summary = order_timeouts(options)
    except PipelineError as error:
        raise UsageError(str(error)) from None
    except OSError as error:
        print(f"warren pipeline: {error}", file=sys.stderr)
        return Exit.IO
    if options.json:
        print(json.dumps(summary.as_dict(), indent=2))
    else:
        show(summary, options.out)
    return Exit.DONE


def parser() -> Parser:
    root = Parser(prog="warren pipeline", description="Spark jobs over what a broker's audit queue holds.")
    jobs = root.add_subparsers(dest="job", metavar="JOB", parser_class=Parser)
    job = jobs.add_parser(
        "order-timeouts",
        help="which orders were paid in time, late or never; and under other timeouts",
        description="Which orders were paid in time, late or never, how late payments are, and what other timeouts "
        "would have meant. The messages stay in the queue.",
    )
    job.add_argument("--source", required=True, metavar="URL", help="amqp://user:password@host:port/vhost")
    job.add_argument(
        "--queue", required=True, help="a classic queue, without a delivery limit, that nobody consumes"
    )
    job.add_argument(
        "--out", required=True, type=Path, metavar="DIR", help="folder for Parquet, summary.json, report.html"
    )
    job.add_argument(
        "--timeout", type=duration, default="30m", help="after which the workflow cancels (default: 30m)"
    )
    job.add_argument(
        "--recount",
        type=duration_list,
        default="10m,20m,60m,120m",
        metavar="LIST",
        help="timeouts to count the outcomes again for (default: %(default)s)",
    )
    job.add_argument(
        "--master", default="local[*]", help="where Spark runs (default: %(default)s, this machine)"
    )
    job.add_argument(
        "--read-timeout",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="give up after so long without progress (default: 30)",
    )
    job.add_argument("--json", action="store_true", help="print the summary as JSON")
    return root


def duration(text: str) -> timedelta:
    try:
        found = durations.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if not found:
        raise argparse.ArgumentTypeError("it must be longer than nothing")
    return found


def duration_list(text: str) -> tuple[timedelta, ...]:
    return tuple(duration(word) for word in text.split(","))


def order_timeouts(options: argparse.Namespace) -> Summary:
    from warren.pipeline.jobs.order_timeouts import run

    started = time.monotonic()

    def progress(step: str) -> None:
        print(f"{time.monotonic() - started:6.1f} s  {step}", file=sys.stderr, flush=True)

    return run(
        options.source,
        options.queue,
        options.out,
        timeout=options.timeout,
        other_timeouts=options.recount,
        master=options.master,
        read_timeout=options.read_timeout,
        progress=progress,
    )


def show(summary: Summary, out: Path) -> None:
    """The outcome on standard output, and where the rest stands."""
    from rich.console import Console
    from rich.table import Table

    from warren.pipeline.jobs.order_timeouts import CONTRADICTIONS

    table = Table(
        title=f"{summary.orders:,} orders from {summary.messages.read:,} messages", title_justify="left"
    )
    table.add_column("timeout")
    for column in ("paid in time", "paid late", "never paid"):
        table.add_column(column, justify="right")
    table.add_row(
        f"{words(summary.timeout_seconds)}, as decided",
        f"{summary.paid_in_time:,}",
        f"{summary.paid_late:,}",
        f"{summary.cancelled:,}",
        end_section=True,
    )
    for each in summary.recount:
        row = (f"{each.paid_in_time:,}", f"{each.paid_late:,}", f"{each.never_paid:,}")
        table.add_row(f"{words(each.timeout_seconds)}, recounted", *row)
    console = Console(highlight=False)
    console.print(table)
    for name, count in summary.contradictions.items():
        if count:
            console.print(f"in doubt: {count:,} {CONTRADICTIONS[name]}")
    if summary.decided_otherwise:
        console.print(f"decided otherwise than their own times say: {summary.decided_otherwise:,}")
    console.print(f"report: {out / 'report.html'}", soft_wrap=True)
