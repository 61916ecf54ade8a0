"""Options of a benchmark run, its schedule, and the reports of its workers: values sent between processes."""

from __future__ import annotations

from dataclasses import dataclass, field

MIN_NUMBERED_SIZE = 8
"""Smallest body, in bytes, that carries a sequence number, so that loss and order can be verified."""
MIN_TIMESTAMPED_SIZE = 16
"""Smallest body, in bytes, that also carries its send time, so that latency can be measured."""


@dataclass(frozen=True)
class Load:
    """Options of one run of the load tool: numbers of clients, kind and rate of messages, queues and exchange."""

    url: str
    queue: str
    publishers: int = 1
    consumers: int = 1
    size: int = 16
    """Bytes of each body; with `max_size`, the smallest."""
    window: int = 1000
    """Most unconfirmed publishes of each publisher; 0 turns publisher confirms off."""
    prefetch: int = 1000
    ack_every: int = 1
    """Deliveries that one basic.ack acknowledges; 0 means automatic acknowledgement."""
    persistent: bool = False
    seconds: float = 3.0
    warmup: float = 1.0
    rate: float = 0.0
    """Messages per second that all publishers together send; 0 is no limit."""
    queue_type: str = "classic"
    """Value of `x-queue-type` for all queues. With streams, every consumer gets every message."""
    exchange: str = ""
    """Exchange type, such as `topic`; empty to publish to queues through the default exchange."""
    queues: int = 1
    """Number of queue groups (see `fan_out`); successive messages are routed to successive groups."""
    fan_out: int = 1
    """Number of queues in each group; each of them gets a copy of the group's messages."""
    keys: int = 1
    """Number of different routing keys that are bound to each group."""
    bindings: int = 0
    """Number of further bindings of the exchange that match no message."""
    headers: int = 0
    """Number of headers in each message."""
    priorities: int = 0
    """Number of different message priorities, used in turn; 0 declares queues without priorities."""
    arguments: tuple[tuple[str, int | str], ...] = ()
    """Further arguments of queue.declare."""
    max_size: int = 0
    """Bytes of the largest body, if sizes vary between `size` and this; 0 if all bodies have `size`."""
    distinct: bool = False
    """True if no two messages are alike: each has an id, a timestamp, three headers and content of its own."""
    single_writes: bool = False
    """True if a publisher writes each message to its socket by itself, as a client library does for each publish."""
    uses_get: bool = False
    """True if consumers fetch messages one by one with basic.get instead of basic.consume."""
    run_id: int = 0
    """Identifier of the run (0-2047), carried by each message to recognise messages left behind by another run."""

    @property
    def copies(self) -> int:
        """Number of deliveries that are expected for each message: one from each queue that it is routed to.

        From a stream, each consumer gets its own delivery.
        """
        return self.fan_out * (self.consumers if self.queue_type == "stream" else 1)

    @property
    def largest(self) -> int:
        """Bytes of the largest body."""
        return max(self.size, self.max_size)

    @property
    def ordered(self) -> bool:
        """True if a consumer is expected to get the messages of one publisher in order: there are no priorities."""
        return not self.priorities


@dataclass(frozen=True)
class Schedule:
    """Schedule of a run: its start and end, and start and end of the span that is measured.

    All times are values of `time.monotonic_ns()`.
    """

    start: int
    measured_from: int
    measured_until: int
    end: int
    """Time at which publishers stop, a little after the measured span, so that the load is constant within it."""


@dataclass
class SpanCounts:
    """Time and message count of a worker at the start and the end of the measured span, to compute a rate from.

    The measured span is the run without its warm-up and its end.
    """

    began: int = 0
    ended: int = 0
    first: int = 0
    last: int = 0
    processor: float = 0.0
    """Processor time that the worker used in the measured span, in seconds."""

    @property
    def per_second(self) -> float:
        span = self.ended - self.began
        return (self.last - self.first) * 1e9 / span if span > 0 else 0.0


@dataclass
class PublisherReport:
    """Results of a publisher process, which it sends to the coordinator: messages sent, confirmed and nacked."""

    publisher: int
    sent: int = 0
    confirmed: int = 0
    nacked: int = 0
    sending: SpanCounts = field(default_factory=SpanCounts)
    confirming: SpanCounts = field(default_factory=SpanCounts)


@dataclass
class ConsumerReport:
    """Results of a consumer process, which it sends to the coordinator: counts, order and latencies of deliveries."""

    count: int = 0
    counts: list[int] = field(default_factory=list)
    """Number of received messages, by publisher number."""
    sums: list[int] = field(default_factory=list)
    """Sum of the sequence numbers of received messages, by publisher number.

    Together with `counts` it reveals losses and duplicates: N messages delivered once have the sum 1 + ... + N.
    """
    reordered: int = 0
    """Number of messages that were delivered after a later one of the same publisher."""
    redelivered: int = 0
    foreign: int = 0
    """Number of received messages that belong to other runs."""
    latencies: list[int] = field(default_factory=list)
    """Histogram of latencies: number of messages in each bucket, a range of microseconds (`message_flow.bucket`)."""
    consuming: SpanCounts = field(default_factory=SpanCounts)
