"""Queues with a backlog at the end of the captured time (the time of the last captured event), with the advice that the
job `flow` derives from the same events.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from warren.pipeline.jobs.backlog_advice import Measure
from warren.pipeline.jobs.flow.aggregates import summary_of
from warren.pipeline.jobs.flow.facts import routes_of, steps_of
from warren.pipeline.jobs.flow.summary import Options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class Backlog:
    """Queue with a backlog, and the measures recommended against it."""

    queue: str
    ready: int
    """Ready messages at the time of the last captured event, computed from the captured events. If the queue's broker
    captures no events, messages that were lost on the way to the queue are included."""
    measures: tuple[Measure, ...]
    """Recommended measures, the most urgent first."""


def backlogs_of(
    events: DataFrame, write_and_reload: Callable[[DataFrame, str], DataFrame]
) -> tuple[Backlog, ...]:
    """Return the queues with ready messages for which a measure is recommended, the largest backlog first.

    :param write_and_reload: writes a frame as a table of the given name, and returns it as read from disk
    """
    tables = {
        "events": events,
        "steps": write_and_reload(steps_of(events), "steps"),
        "routes": write_and_reload(routes_of(events), "routes"),
    }
    found = [
        Backlog(queue.queue, queue.ready, queue.measures)
        for queue in summary_of(tables, Options()).queues
        if queue.ready and any(each.kind != "nothing" for each in queue.measures)
    ]
    streams = streams_among(events, [backlog.queue for backlog in found]) if found else set()
    work = (backlog for backlog in found if backlog.queue not in streams)
    return tuple(sorted(work, key=lambda backlog: -backlog.ready))


def streams_among(events: DataFrame, queues: list[str]) -> set[str]:
    """Return those of the given queues that are streams, according to the events' column `stream`. A stream keeps all
    messages, so what it holds is no backlog.
    """
    from pyspark.sql import functions as F

    streams = events.where(F.col("stream") & F.col("queue").isin(queues)).select("queue").distinct()
    return {row["queue"] for row in streams.collect()}


def has_waiting_messages(messages: DataFrame, findings: DataFrame) -> bool:
    """Return whether any message still waits in a queue: it has no outcome, and is not among the losses.

    :param messages: one row for each message and queue, with its outcome, from `outcomes.outcomes_of`
    :param findings: one row for each finding, losses included, from `findings.findings_of`
    """
    from pyspark.sql import functions as F

    still = messages.where(F.col("fate").isin("waiting", "nowhere")).select("message_id")
    gone = findings.where(F.col("finding").isin("lost", "unknown")).select("message_id")
    return bool(still.join(gone, "message_id", "left_anti").limit(1).collect())
