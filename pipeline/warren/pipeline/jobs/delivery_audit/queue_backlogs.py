"""What helps the queues in which messages wait, as the job `flow` finds it from the same events."""

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
    """A queue with more than it should have."""

    queue: str
    ready: int
    """Waiting, at the end; what was lost on the way to it is among them, unless its broker tells events, too."""
    measures: tuple[Measure, ...]
    """The most urgent first."""


def backlogs_of(
    events: DataFrame, write_and_reload: Callable[[DataFrame, str], DataFrame]
) -> tuple[Backlog, ...]:
    """The queues that need something, the largest backlog first."""
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
    """Those that keep what they have for whoever reads: nothing waits there."""
    from pyspark.sql import functions as F

    told = events.where(F.col("stream") & F.col("queue").isin(queues)).select("queue").distinct()
    return {row["queue"] for row in told.collect()}


def has_waiting_messages(messages: DataFrame, findings: DataFrame) -> bool:
    """Whether there is a message without an end that is not held to be lost."""
    from pyspark.sql import functions as F

    still = messages.where(F.col("fate").isin("waiting", "nowhere")).select("message_id")
    gone = findings.where(F.col("finding").isin("lost", "unknown")).select("message_id")
    return bool(still.join(gone, "message_id", "left_anti").limit(1).collect())
