"""Result types and options of the job `flow`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

from warren.pipeline.jobs.backlog_advice import Measure
from warren.pipeline.jobs.flow.trend import Forecast, Growth


@dataclass(frozen=True)
class Limit:
    """Limit of a queue, in ready messages or their bytes."""

    value: float
    unit: str


@dataclass(frozen=True)
class Options:
    """Options of the job."""

    step: timedelta = timedelta(minutes=1)
    trend: timedelta = timedelta(hours=1)
    limit: Limit | None = None


@dataclass(frozen=True)
class TimelineStep:
    """Rates of a queue from `at` until the next step, and its levels at the end of the step."""

    at: str
    published: int
    delivered: int
    redelivered: int
    settled: int
    """Acknowledged or rejected messages, and deliveries with automatic acknowledgement."""
    ready: int | None
    """None for a stream, like `unacked`."""
    unacked: int | None


@dataclass(frozen=True)
class Consumer:
    """Consumer of a queue."""

    queue: str
    connection: str | None
    consumer: str
    by: str
    """Side whose events are used: the SDK's if it captured any, because a broker counts messages in transit as
    unacknowledged."""
    prefetch: int | None
    """0 is no limit; None if the consumer started before capture."""
    seconds: float
    """Time from its start to its end, as far as both were captured."""
    delivered: int
    settled: int
    held: float
    """Average number of unacknowledged messages."""
    window_used: float | None
    """`held` as a share of `prefetch`."""
    idle: float | None
    """Share of its time without a message, at a resolution of one second."""
    full: float | None
    """Share of its time with a full window."""


@dataclass(frozen=True)
class Queue:
    """Rates and levels of a queue. Rates are messages per second."""

    queue: str
    by: str
    """Side whose events are used: the broker's if it captured any of this queue, else the SDK's."""
    stream: bool
    """True for a stream, which has rates but no levels, growth, forecast or measures."""
    published: int
    delivered: int
    redelivered: int
    acked: int
    rejected: int
    requeued: int
    expired: int
    dropped: int
    """Dead-lettered without a rejection or expiry: because of a length limit or a delivery limit."""
    auto_acked: int
    published_a_second: float
    delivered_a_second: float
    settled_a_second: float
    redelivered_share: float
    bytes_a_message: float | None
    began_with: int | None
    """Minimum number of messages before the first event, because more left the queue than had arrived."""
    ready: int | None
    """Ready messages at the end; None for a stream, like all levels."""
    unacked: int | None
    peak: int | None
    """Highest number of ready messages at the end of a second."""
    growth: Growth | None
    """Growth of the ready messages; None if the period is too short, and for a stream."""
    consumers: int
    """Number of consumers at the end."""
    prefetch: int | None
    window_used: float | None
    idle: float | None
    full: float | None
    handling_seconds: float | None
    """A consumer's time with messages, for each message that it settled."""
    acknowledged_together: float | None
    """Messages settled by one acknowledgement."""
    forecast: Forecast | None
    measures: tuple[Measure, ...]
    timeline: tuple[TimelineStep, ...]


@dataclass(frozen=True)
class Summary:
    """Rates, backlogs and advice."""

    events: int
    sources: int
    missing: int
    """Events that capture lost, from gaps in the sequences of the sources. Levels may be wrong by as many."""
    cut_off: int
    """Events of the same sources before the first one that was read."""
    began: str | None
    ended: str | None
    seconds: float
    step_seconds: int
    trend_seconds: float
    unrouted: int
    """Publishes whose queue no delivery reveals."""
    queues: tuple[Queue, ...]
    more_queues: int
    consumers: tuple[Consumer, ...]
    more_consumers: int

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)
