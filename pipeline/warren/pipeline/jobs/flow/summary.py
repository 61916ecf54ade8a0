"""Result types and options of the job `flow`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

from warren.pipeline.jobs.backlog_advice import Measure
from warren.pipeline.jobs.flow.trend import Forecast, Growth


@dataclass(frozen=True)
class Limit:
    """Maximum length of a queue, in ready messages or their bytes, for the forecast."""

    value: float
    unit: str


@dataclass(frozen=True)
class Options:
    """Options of the job `flow`: width of a time step of the queues' timelines, period over which the growth of
    backlogs is computed, and maximum length of the queues for the forecast of when they are full.
    """

    step: timedelta = timedelta(minutes=1)
    trend: timedelta = timedelta(hours=1)
    limit: Limit | None = None


@dataclass(frozen=True)
class TimelineStep:
    """One step of a queue's timeline: numbers of messages published, delivered and settled (acknowledged, rejected, or
    delivered with automatic acknowledgement) in the step that begins at `at`, and the numbers of ready and
    unacknowledged messages at its end.
    """

    at: str
    seconds: int
    """Width of the step. The last one ends with the captured period, and may be shorter than the others."""
    published: int
    delivered: int
    redelivered: int
    settled: int
    """Messages that were acknowledged, rejected, or delivered with automatic acknowledgement."""
    ready: int | None
    """Ready messages at the end of the step. This and `unacked` are None for a stream."""
    unacked: int | None


@dataclass(frozen=True)
class Consumer:
    """Consumer of a queue: its prefetch, and how much of it the consumer used between its start and end."""

    queue: str
    connection: str | None
    consumer: str
    by: str
    """Side that captured the events from which the numbers are computed: `sdk` (the consumer's process) or `broker`.
    The SDK's events are preferred, because a broker counts messages in transit as unacknowledged."""
    prefetch: int | None
    """Limit of unacknowledged messages; 0 is no limit. None if the consumer started before the first captured event."""
    seconds: float
    """Seconds from the consumer's start to its end, as far as they lie in the captured period."""
    delivered: int
    settled: int
    held: float
    """Average number of unacknowledged messages of the consumer over `seconds`."""
    window_used: float | None
    """Average number of unacknowledged messages as a share of the prefetch; None without a limit."""
    idle: float | None
    """Share of `seconds` without an unacknowledged message, at a resolution of one second."""
    full: float | None
    """Share of `seconds` with as many unacknowledged messages as the prefetch allows; None without a limit."""


@dataclass(frozen=True)
class Queue:
    """Numbers of one queue: counts and rates of its messages, its ready and unacknowledged messages with their growth,
    a forecast of when it is full, and recommended measures. Rates are messages per second.
    """

    queue: str
    by: str
    """Side that captured the events from which the numbers are computed: `broker` if the broker captured any about this
    queue, else `sdk`, the applications."""
    stream: bool
    """True for a stream. It has rates, but no backlog, growth, forecast or measures, because it keeps all messages."""
    published: int
    delivered: int
    redelivered: int
    acked: int
    rejected: int
    requeued: int
    expired: int
    dropped: int
    """Messages dead-lettered or dropped by the broker for another reason than a rejection or expiry: a length limit or
    a delivery limit."""
    auto_acked: int
    published_a_second: float
    delivered_a_second: float
    settled_a_second: float
    redelivered_share: float
    bytes_a_message: float | None
    began_with: int | None
    """Smallest number of messages that must have been in the queue before the first captured event, because more
    messages left it than had arrived."""
    ready: int | None
    """Ready messages at the end of the period. This, `unacked`, `peak` and `began_with` are None for a stream."""
    unacked: int | None
    peak: int | None
    """Largest number of ready messages at the end of any second."""
    growth: Growth | None
    """Growth of the ready messages; None for a stream, or if the period is too short."""
    consumers: int
    """Number of consumers at the end of the period."""
    prefetch: int | None
    window_used: float | None
    idle: float | None
    full: float | None
    handling_seconds: float | None
    """Seconds that consumers take for a message, not counting their time without messages."""
    acknowledged_together: float | None
    """Average number of messages per acknowledgement (`basic.ack`)."""
    forecast: Forecast | None
    measures: tuple[Measure, ...]
    timeline: tuple[TimelineStep, ...]


@dataclass(frozen=True)
class Summary:
    """Rates and backlogs of queues, use of the prefetch by consumers, and advice."""

    events: int
    sources: int
    missing: int
    """Number of captured events that never reached the stream: gaps in the numbers that each application or broker
    gives its events. The numbers of ready and unacknowledged messages may be wrong by as many."""
    cut_off: int
    """Number of events that were captured before the first ones that were read from the stream; each application or
    broker numbers its events from 1 on."""
    began: str | None
    ended: str | None
    seconds: float
    step_seconds: int
    trend_seconds: float
    unrouted: int
    """Number of publishes whose queue is unknown: no delivery had their exchange and routing key."""
    queues: tuple[Queue, ...]
    more_queues: int
    consumers: tuple[Consumer, ...]
    more_consumers: int

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)
