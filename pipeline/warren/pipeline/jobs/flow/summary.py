"""The numbers of the job `flow`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

from warren.pipeline.jobs.backlog_advice import Measure
from warren.pipeline.jobs.flow.trend import Forecast, Growth


@dataclass(frozen=True)
class Limit:
    """What a queue holds at most: messages that wait, or their bytes."""

    value: float
    unit: str


@dataclass(frozen=True)
class Options:
    """What the command line says."""

    step: timedelta = timedelta(minutes=1)
    trend: timedelta = timedelta(hours=1)
    limit: Limit | None = None


@dataclass(frozen=True)
class TimelineStep:
    """What happened to a queue from `at` until the next step, and what it held at the end of it."""

    at: str
    published: int
    delivered: int
    redelivered: int
    settled: int
    """Acknowledged or rejected; deliveries that need no acknowledgement, too."""
    ready: int | None
    """None, as `unacked`: it is a stream."""
    unacked: int | None


@dataclass(frozen=True)
class Consumer:
    """One consumer of a queue."""

    queue: str
    connection: str | None
    consumer: str
    by: str
    """Whose events these are: the SDK's where it told any; a broker sees what is on its way as held."""
    prefetch: int | None
    """0 is no limit; None: it began before the capture did."""
    seconds: float
    """From its beginning to its end, as far as both were seen."""
    delivered: int
    settled: int
    held: float
    """Messages that it had and had not settled, on average over its time."""
    window_used: float | None
    """`held` of `prefetch`."""
    idle: float | None
    """Share of its time without a message, looked at once a second."""
    full: float | None
    """Share of its time with a full window."""


@dataclass(frozen=True)
class Queue:
    """What came into a queue, went out of it, and stays in it. Rates are messages a second."""

    queue: str
    by: str
    """Whose events these are: the broker's where it told any of this queue, else the SDK's."""
    stream: bool
    """It keeps what is read: it has rates, and no level, growth, forecast or measures."""
    published: int
    delivered: int
    redelivered: int
    acked: int
    rejected: int
    requeued: int
    expired: int
    dropped: int
    """Dead-lettered without having been rejected or expired: by a full queue, a delivery limit."""
    auto_acked: int
    published_a_second: float
    delivered_a_second: float
    settled_a_second: float
    redelivered_share: float
    bytes_a_message: float | None
    began_with: int | None
    """It held at least so many before the first event: more left it than had come."""
    ready: int | None
    """Waiting, at the end; None, as all levels: it is a stream."""
    unacked: int | None
    peak: int | None
    """Of the waiting ones, at the end of a second."""
    growth: Growth | None
    """Of the waiting ones; None where the time is too short, and for a stream."""
    consumers: int
    """At the end."""
    prefetch: int | None
    window_used: float | None
    idle: float | None
    full: float | None
    handling_seconds: float | None
    """A consumer's time with messages, for each it settled."""
    acknowledged_together: float | None
    """Messages that one acknowledgement settled."""
    forecast: Forecast | None
    measures: tuple[Measure, ...]
    timeline: tuple[TimelineStep, ...]


@dataclass(frozen=True)
class Summary:
    """Rates, backlogs, and what helps."""

    events: int
    sources: int
    missing: int
    """Events that capture lost: gaps in the numbers of their sources. Levels may be off by as many."""
    cut_off: int
    """Events before the first one that was read, of the same sources."""
    began: str | None
    ended: str | None
    seconds: float
    step_seconds: int
    trend_seconds: float
    unrouted: int
    """Publishes that no delivery tells the queue of."""
    queues: tuple[Queue, ...]
    more_queues: int
    consumers: tuple[Consumer, ...]
    more_consumers: int

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)
