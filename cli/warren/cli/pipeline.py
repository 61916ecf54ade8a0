"""`warren pipeline JOB`: run one of the Spark jobs, locally or on a cluster."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from warren.core.command_output import write_error, write_json, write_line
from warren.core.errors import ExitStatus, UsageError
from warren.pipeline import durations
from warren.pipeline.broker_connection import Address
from warren.pipeline.errors import PipelineError, spark_failure
from warren.pipeline.jobs.batch_run import run_once, source_options, spark_path, summary_as_json, write_report
from warren.pipeline.jobs.continuous_run import claim_output_folder, run_continuously
from warren.pipeline.jobs.job import Run, Summary
from warren.pipeline.jobs.registry import ALL, JOBS
from warren.pipeline.jobs.run_options import RunOptions
from warren.pipeline.spark_session import check_spark, spark_session


@dataclass(frozen=True)
class Arguments:
    """Parsed arguments of `warren pipeline`.

    :param job: name of the job
    :param master: Spark master
    :param remote: URL of a Spark Connect server; None for a master
    :param json: True to print the summary as JSON
    """

    job: str
    master: str
    remote: str | None
    json: bool
    options: RunOptions[Any]


class Parser(argparse.ArgumentParser):
    """Argument parser that raises a `UsageError` of one line, where argparse prints its usage and exits."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} --help)")


def main(arguments: Sequence[str]) -> int:
    """Run a job and return the exit status.

    :raises UsageError: for wrong arguments, an unreadable source, or if Java or pyspark is missing
    """
    parsed = parse(arguments)
    started = time.monotonic()

    def progress(step: str) -> None:
        write_error(f"{time.monotonic() - started:6.1f} s  {step}")

    try:
        summary, details = run(parsed, progress)
    except PipelineError as error:
        raise UsageError(str(error)) from None
    except OSError as error:
        write_error(f"warren pipeline: {error}")
        return ExitStatus.IO
    if parsed.json:
        write_json(summary_as_json(summary, details))
    else:
        JOBS[parsed.job].show(summary)
        write_line(f"report: {parsed.options.out / 'report.html'}")
    return ExitStatus.SUCCESS


def complete(before: Sequence[str], last: str) -> Sequence[str]:
    """Return the candidates for `warren completion`: the jobs, until one has been typed.

    :param before: complete words after `warren pipeline`
    :param last: beginning of the last word; unused, because the caller selects the candidates that begin with it
    """
    return [] if any(word in JOBS for word in before) else sorted(JOBS)


def parse(arguments: Sequence[str]) -> Arguments:
    """Parse the arguments of `warren pipeline`.

    :raises UsageError: for wrong arguments
    """
    parsed = parser().parse_args(arguments)
    if parsed.job is None:
        raise UsageError(f"no job is named; the jobs are {', '.join(JOBS)} (see warren pipeline --help)")
    options = RunOptions(
        source=parsed.source,
        stream=parsed.stream,
        queue=parsed.queue,
        out=parsed.out,
        read_timeout=parsed.read_timeout,
        continuous=parsed.continuous or parsed.available_now,
        available_now=parsed.available_now,
        every=parsed.every,
        max_messages=parsed.max_messages,
        own=JOBS[parsed.job].own_options(parsed),
    )
    return Arguments(parsed.job, parsed.master, parsed.remote, parsed.json, options)


def run(parsed: Arguments, progress: Callable[[str], None] = lambda step: None) -> tuple[Summary, Run]:
    """Run a job, from reading the source to writing the report.

    The folder `--out` is created if it is missing. The output of an earlier run is replaced or, with `--continuous`,
    continued. On a cluster the folder must be on storage that this process, the driver and the executors share.

    :param parsed: result of `parse`
    :param progress: called with lines of text that tell the user about the progress, such as `starting Spark`
    :return: the summary, and the details of the run
    :raises PipelineError: if the source cannot be read
    :raises UsageError: if Spark cannot start, or cannot write to the folder
    :raises SparkFailed: if Spark fails later, for example while writing
    """
    started = time.monotonic()
    job, options = JOBS[parsed.job], parsed.options
    check(parsed)
    options.out.mkdir(parents=True, exist_ok=True)
    claim_output_folder(job, options)
    progress("starting Spark" if parsed.remote is None else f"connecting to {parsed.remote}")
    from warren.pipeline.datasource import source_errors

    def details() -> Run:
        streams = () if options.stream is None else tuple(options.stream.split(","))
        source = Address(options.source).masked_url
        seconds = round(time.monotonic() - started, 1)
        return Run(job.NAME, source, streams, options.queue, options.continuous, seconds)

    def report(summary: Summary) -> None:
        write_report(job, summary, details(), options.out)

    name, log = f"warren {job.NAME}", options.out / "spark.log"
    try:
        with spark_session(name, parsed.master, log, parsed.remote) as spark, source_errors():
            if options.continuous:
                summary = run_continuously(job, spark, options, progress, report)
            else:
                summary = run_once(job, spark, options, progress)
                report(summary)
    except Exception as error:
        if failure := spark_failure(error, log):
            raise failure from error
        raise
    return summary, details()


def check(parsed: Arguments) -> None:
    """Check the arguments before Spark starts, which takes several seconds.

    :param parsed: result of `parse`
    :raises UsageError: if the output folder or Spark is not usable
    :raises PipelineError: if the source is wrong
    """
    options = parsed.options
    Address(options.source, options.read_timeout)
    spark_path(options.out)
    if options.out.exists() and not options.out.is_dir():
        raise UsageError(f"--out {options.out} is not a folder")
    check_spark(parsed.remote)
    from warren.pipeline.datasource import AmqpDataSource

    AmqpDataSource(source_options(options)).schema()


def parser() -> Parser:
    root = Parser(
        prog="warren pipeline", description="Spark jobs over the messages of a broker's streams and queues."
    )
    jobs = root.add_subparsers(dest="job", metavar="JOB", parser_class=Parser)
    for job in ALL:
        each = jobs.add_parser(job.NAME, help=job.HELP, description=job.DESCRIPTION)
        add_shared_options(each)
        job.add_options(each)
    return root


def add_shared_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--source", required=True, metavar="URL", help="amqp://user:password@host:port/vhost")
    read = parser.add_mutually_exclusive_group(required=True)
    read.add_argument("--stream", type=filled, metavar="NAME[,NAME]", help="streams to read")
    read.add_argument(
        "--queue",
        type=filled,
        metavar="NAME",
        help="queue to read: a classic queue without delivery limit and consumers. It is browsed, its messages stay; with "
        "--continuous they are consumed",
    )
    parser.add_argument(
        "--out", required=True, type=Path, metavar="DIR", help="folder for Parquet, summary.json, report.html"
    )
    parser.add_argument(
        "--master", default="local[*]", help="Spark master (default: %(default)s, this machine)"
    )
    parser.add_argument(
        "--remote", metavar="URL", help="Spark Connect server, instead of a master: sc://host:15002"
    )
    parser.add_argument(
        "--read-timeout",
        type=durations.seconds_argument,
        default=30.0,
        metavar="DURATION",
        help="fail after this time without progress, such as 90 or 90s (default: 30s)",
    )
    parser.add_argument(
        "--continuous",
        action="store_true",
        help="run until Ctrl-C or SIGTERM; the next run continues from there",
    )
    parser.add_argument(
        "--every",
        type=durations.duration_argument,
        default="10s",
        help="with --continuous: interval of micro-batches (default: %(default)s)",
    )
    parser.add_argument(
        "--available-now",
        action="store_true",
        help="with --continuous: end when all messages that are available now have been read",
    )
    parser.add_argument(
        "--max-messages",
        type=at_least_one,
        metavar="NUMBER",
        help="with --continuous: largest micro-batch (default: all available messages)",
    )
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")


def at_least_one(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of messages; write 1 or more")
    return int(text)


def filled(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("it is empty")
    return text
