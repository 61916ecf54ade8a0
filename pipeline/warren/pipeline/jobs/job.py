"""Interface of a job: the functions that `warren pipeline` calls for batch and continuous runs.

The source is read once. `events`, the rows that a job makes of the messages, is written to Parquet, and everything else
is derived from there: `tables` in one pass, or `streams` continuously. `summarise` reads only written tables, so that
both kinds of run give the same numbers. No job uses SparkContext or RDDs, which Spark Connect does not have.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from rich.console import Console

EVENTS = "events"
"""Name of the table that holds the events."""


class Summary(Protocol):
    """All numbers of a job, as a frozen dataclass."""

    def as_dict(self) -> dict[str, Any]:
        """Return the numbers for JSON."""


@dataclass(frozen=True)
class Run:
    """Origin of a job's numbers.

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
        """Name of the source: `stream orders.audit`, `streams a, b`, `queue orders.audit`."""
        if self.queue is not None:
            return f"queue {self.queue}"
        return f"stream{'s' if len(self.streams) > 1 else ''} {', '.join(self.streams)}"

    @property
    def foot(self) -> tuple[str, str]:
        """Footer lines of a page: origin and run."""
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
    """Package of `warren.pipeline.jobs`. Importing it needs no pyspark: its functions import it."""

    NAME: str
    """Name on the command line: `order-timeouts`."""
    HELP: str
    DESCRIPTION: str

    def add_options(self, parser: argparse.ArgumentParser, /) -> None:
        """Add the job's own options; `options` of the other methods holds them and those that all jobs share."""

    def events(self, messages: DataFrame, options: argparse.Namespace, /) -> DataFrame:
        """Return the job's events, from the columns of the data source.

        In a continuous run (`messages.isStreaming`) the result must be possible in append mode.
        """

    def tables(self, events: DataFrame, options: argparse.Namespace, /) -> Mapping[str, DataFrame]:
        """Return the tables derived from all events by name; each becomes a folder of Parquet files."""

    def streams(self, events: DataFrame, options: argparse.Namespace, /) -> Mapping[str, DataFrame]:
        """Return the same tables as streaming frames in append mode. A later row may correct an earlier one of its key."""

    def summarise(self, tables: Mapping[str, DataFrame], options: argparse.Namespace, /) -> Summary:
        """Return all numbers, from `events` and the tables as they are on disk."""

    def page(self, summary: Any, run: Run, /) -> str:
        """Return one self-contained HTML page."""

    def show(self, summary: Any, console: Console, /) -> None:
        """Print the most important numbers in a terminal."""
