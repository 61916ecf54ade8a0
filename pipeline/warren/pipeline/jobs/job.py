"""What a job is: the functions that `warren pipeline` calls, for a run over what is there and for one that goes on.

The source is read once. What a job makes of each message, `events`, is written to Parquet, and everything else comes
from there: `tables` in one go, or `streams` as they grow. `summarise` reads only what has been written, so that the same
numbers come out of both. No job touches SparkContext or RDDs, which a session of Spark Connect has not.
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
"""The name of the table that the source is written to."""


class Summary(Protocol):
    """Every number of a job: a frozen dataclass."""

    def as_dict(self) -> dict[str, Any]:
        """The numbers as JSON has them."""


@dataclass(frozen=True)
class Run:
    """Where a job's numbers come from.

    :param source: the broker's URL, without its password
    :param streams: what was read; empty if it was a queue
    :param seconds: real time since the start, Spark's own included
    """

    job: str
    source: str
    streams: tuple[str, ...]
    queue: str | None
    continuous: bool
    seconds: float

    @property
    def place(self) -> str:
        """`stream orders.audit`, `streams a, b`, `queue orders.audit`."""
        if self.queue is not None:
            return f"queue {self.queue}"
        return f"stream{'s' if len(self.streams) > 1 else ''} {', '.join(self.streams)}"

    @property
    def foot(self) -> tuple[str, str]:
        """What a page says about itself at its end."""
        made = (
            f"Brought up to date by warren pipeline {self.job} --continuous, {self.seconds:g} s after its start."
            if self.continuous
            else f"Made in {self.seconds:g} s by warren pipeline {self.job}."
        )
        stay = " where its messages stay" if self.queue is None or not self.continuous else ""
        return (
            f"Read from {self.place} at {self.source}{',' if stay else ''}{stay}.",
            f"{made} The rows stand beside this page as Parquet, these numbers in summary.json.",
        )


class Job(Protocol):
    """A module of `warren.pipeline.jobs`. Importing it needs no pyspark: its functions do that."""

    NAME: str
    """On the command line: `order-timeouts`."""
    HELP: str
    DESCRIPTION: str

    def add_options(self, parser: argparse.ArgumentParser, /) -> None:
        """Its own options; `options` below holds them and those that all jobs share."""

    def events(self, messages: DataFrame, options: argparse.Namespace, /) -> DataFrame:
        """What each message says, from the columns of the data source.

        In a continuous run (`messages.isStreaming`) it must be possible in append mode.
        """

    def tables(self, events: DataFrame, options: argparse.Namespace, /) -> Mapping[str, DataFrame]:
        """What is made of all events, by name; each becomes a folder of Parquet files."""

    def streams(self, events: DataFrame, options: argparse.Namespace, /) -> Mapping[str, DataFrame]:
        """The same tables as events arrive, in append mode. A later row may correct an earlier one of its key."""

    def summarise(self, tables: Mapping[str, DataFrame], options: argparse.Namespace, /) -> Summary:
        """Every number, from `events` and the tables as they are on disk; nothing else is at hand."""

    def page(self, summary: Any, run: Run, /) -> str:
        """One self-contained HTML page."""

    def show(self, summary: Any, console: Console, /) -> None:
        """What matters most, in a terminal."""
