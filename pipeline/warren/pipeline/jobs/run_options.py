"""Options of a run of a job."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Generic, TypeVar

Own = TypeVar("Own")


@dataclass(frozen=True, kw_only=True)
class RunOptions(Generic[Own]):
    """Options of one run of a job: its source, its output, and how it runs.

    :param source: URL of the broker.
    :param stream: streams to read, with commas between; None for a queue.
    :param queue: queue to read; None for streams.
    :param out: folder of the output.
    :param read_timeout: seconds without progress after which reading fails.
    :param continuous: True to run until SIGINT or SIGTERM.
    :param available_now: True for a continuous run to end when all messages that are available have been read.
    :param every: interval of the micro-batches of a continuous run.
    :param max_messages: messages of the largest micro-batch; None for no limit.
    :param own: options that only this job has.
    """

    source: str
    stream: str | None
    queue: str | None
    out: Path
    read_timeout: float
    continuous: bool
    available_now: bool
    every: timedelta
    max_messages: int | None
    own: Own
