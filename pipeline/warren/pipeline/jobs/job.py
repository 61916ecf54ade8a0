"""Interface of a job: the functions that `warren pipeline` calls in a batch run or a continuous run.

The queue or streams are read once. `events` converts the messages to rows, which are written to Parquet as the table
`events`. Everything else is derived from that table: by `tables` in a batch run, by `streams` as streaming queries in a
continuous run. `summarise` reads only written tables, so both kinds of run give the same numbers. No job uses
SparkContext or RDDs, which Spark Connect does not have.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from warren.pipeline.jobs.run_options import RunOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

EVENTS = "events"
"""Name of the table with the rows that `Job.events` makes of the messages."""


class Summary(Protocol):
    """Result of a job: the numbers that its page shows, as a frozen dataclass."""

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name for summary.json, with a dict in place of each dataclass inside."""


@dataclass(frozen=True)
class Run:
    """Description of one run of a job, for its page and summary.json.

    :param source: URL of the broker, without its password
    :param streams: streams that were read; empty for a queue
    :param seconds: elapsed time since the start, Spark's own included
    """

    job: str
    source: str
    streams: tuple[str, ...]
    queue: str | None
    continuous: bool
    seconds: float

    @property
    def place(self) -> str:
        """The queue or streams that were read, as text: `stream orders.audit`, `streams a, b`, `queue orders.audit`."""
        if self.queue is not None:
            return f"queue {self.queue}"
        return f"stream{'s' if len(self.streams) > 1 else ''} {', '.join(self.streams)}"

    @property
    def foot(self) -> tuple[str, str]:
        """The two lines of a page's footer: the origin of the messages, and the command that created the page."""
        made = (
            f"Updated by warren pipeline {self.job} --continuous, {self.seconds:g} s after its start."
            if self.continuous
            else f"Created in {self.seconds:g} s by warren pipeline {self.job}."
        )
        stay = " where the messages remain" if self.queue is None or not self.continuous else ""
        return (
            f"Read from {self.place} at {self.source}{',' if stay else ''}{stay}.",
            f"{made} The rows are in Parquet files next to this page, the numbers in summary.json.",
        )


class Job(Protocol):
    """Functions and constants of a job's package in `warren.pipeline.jobs`.

    Importing such a package needs no pyspark: its functions import it.
    """

    NAME: str
    """Name of the job on the command line, such as `order-timeouts`."""
    HELP: str
    DESCRIPTION: str

    def add_options(self, parser: argparse.ArgumentParser, /) -> None:
        """Add the job's own command-line options to its parser."""

    def own_options(self, parsed: argparse.Namespace, /) -> object:
        """Return the values of the options of `add_options` as a frozen dataclass: `RunOptions.own` of the other methods.

        :param parsed: parsed arguments of the command line
        """

    def events(self, messages: DataFrame, options: RunOptions[Any], /) -> DataFrame:
        """Convert messages to the rows of the table `events`.

        In a continuous run (`messages.isStreaming`) the result must support Spark's output mode `append`.

        :param messages: messages with the columns of the data source `amqp`
        :param options: options of the run, as in the following methods
        """

    def tables(self, events: DataFrame, options: RunOptions[Any], /) -> Mapping[str, DataFrame]:
        """Derive the job's other tables, by name, from all rows of `events`. Each is written to a folder of Parquet
        files.

        :param options: options of the run
        """

    def streams(self, events: DataFrame, options: RunOptions[Any], /) -> Mapping[str, DataFrame]:
        """Derive the same tables as `tables` as streaming frames in output mode `append`, for a continuous run.

        A later row may correct an earlier row with the same key.

        :param options: options of the run
        """

    def summarise(self, tables: Mapping[str, DataFrame], options: RunOptions[Any], /) -> Summary:
        """Compute the numbers that the job's page and summary.json show, from the written tables.

        :param tables: frames that read the written tables, `events` included, from their Parquet files, by name
        :param options: options of the run
        """

    def page(self, summary: Any, run: Run, /) -> str:
        """Return the job's report as one self-contained HTML page.

        :param summary: result of `summarise`
        """

    def show(self, summary: Any, /) -> None:
        """Print the most important numbers of the summary to a terminal."""
