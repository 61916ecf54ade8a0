"""Options of a load, and the reports of its workers: plain values that are sent between processes."""

from __future__ import annotations

from dataclasses import dataclass, field

MIN_NUMBERED_SIZE = 8
"""Smallest body, in bytes, that carries a sequence number, so that loss and order can be verified."""
MIN_TIMESTAMPED_SIZE = 16
"""Smallest body, in bytes, that also carries its send time, so that latency can be measured."""


@dataclass(frozen=True)
class Load:
    """Options of one run of the load tool."""

    url: str
    queue: str
    publishers: int = 1
    consumers: int = 1
    size: int = 16
    window: int = 1000
    """Largest number of unconfirmed publishes of a publisher; 0: no publisher confirms."""
    prefetch: int = 1000
    ack_every: int = 1
    """Messages for each acknowledgement; 0: automatic acknowledgement."""
    persistent: bool = False
    seconds: float = 3.0
    warmup: float = 1.0
    rate: float = 0.0
    """Messages a second of all publishers together; 0: no limit."""
    queue_type: str = "classic"
    """`x-queue-type`. Every consumer of a stream gets every message."""
    exchange: str = ""
    """Type of the exchange; empty: the default exchange."""
    queues: int = 1
    """Number of queue groups, to which messages are routed in turn."""
    fan_out: int = 1
    """Queues in a group; each gets a copy of the message."""
    keys: int = 1
    """Number of routing keys that route to each group."""
    bindings: int = 0
    """Number of further bindings of the exchange that match no message."""
    headers: int = 0
    """Number of headers of each message."""
    priorities: int = 0
    """Number of priorities, which messages have in turn; 0: no priority queues."""
    arguments: tuple[tuple[str, int | str], ...] = ()
    """Further arguments of queue.declare."""
    uses_get: bool = False
    """True if consumers fetch messages one by one with basic.get."""
    run_id: int = 0
    """Identifier of the run in each message (0-2047), to recognise messages that another run left behind."""

    @property
    def copies(self) -> int:
        """Number of deliveries of each message."""
        return self.fan_out * (self.consumers if self.queue_type == "stream" else 1)

    @property
    def ordered(self) -> bool:
        """True if a consumer gets the messages of one publisher in order."""
        return not self.priorities


@dataclass(frozen=True)
class Schedule:
    """Start, end and measured span of a run, in nanoseconds of `time.monotonic_ns()`."""

    start: int
    measured_from: int
    measured_until: int
    end: int
    """Time at which publishers stop: a little after the measured span, so that the load is constant in all of it."""


@dataclass
class SpanCounts:
    """Time and counter of a worker at both ends of the measured span, as its loop sampled them."""

    began: int = 0
    ended: int = 0
    first: int = 0
    last: int = 0
    processor: float = 0.0
    """Processor time of the worker within the span, in seconds."""

    @property
    def per_second(self) -> float:
        span = self.ended - self.began
        return (self.last - self.first) * 1e9 / span if span > 0 else 0.0


@dataclass
class PublisherReport:
    """Report of a publisher."""

    publisher: int
    sent: int = 0
    confirmed: int = 0
    nacked: int = 0
    sending: SpanCounts = field(default_factory=SpanCounts)
    confirming: SpanCounts = field(default_factory=SpanCounts)


@dataclass
class ConsumerReport:
    """Report of a consumer."""

    count: int = 0
    counts: list[int] = field(default_factory=list)
    """Number of messages, by publisher."""
    sums: list[int] = field(default_factory=list)
    """Sums of the sequence numbers, by publisher. With the counts they show that each message was delivered once."""
    reordered: int = 0
    """Number of messages that were delivered after a later one of the same publisher."""
    redelivered: int = 0
    foreign: int = 0
    """Number of messages of other runs."""
    latencies: list[int] = field(default_factory=list)
    """Histogram of latencies in microseconds; see `message_flow.bucket`."""
    consuming: SpanCounts = field(default_factory=SpanCounts)
