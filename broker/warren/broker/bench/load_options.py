"""What load is asked for, and what each worker reports: plain values that go from process to process."""

from __future__ import annotations

from dataclasses import dataclass, field

NUMBERED = 8
"""From this body size on, messages carry their number: loss and order are verified."""
STAMPED = 16
"""From this body size on, they also carry the time of their sending: latency is measured."""


@dataclass(frozen=True)
class Load:
    """One run of the load tool, as its options describe it."""

    url: str
    queue: str
    publishers: int = 1
    consumers: int = 1
    size: int = 16
    window: int = 1000
    """Publishes of one publisher that may be unconfirmed; 0: no confirms."""
    prefetch: int = 1000
    ack_every: int = 1
    """Acknowledge once for this many messages; 0: auto-ack."""
    persistent: bool = False
    seconds: float = 3.0
    warmup: float = 1.0
    rate: float = 0.0
    """Messages a second of all publishers together; 0: as many as the broker takes."""
    queue_type: str = "classic"
    """Of a stream every consumer gets every message."""
    exchange: str = ""
    """The type of the exchange that messages go through; empty: the default exchange, by the queue's name."""
    queues: int = 1
    """Messages are spread over so many groups of queues, in turn."""
    fan_out: int = 1
    """Queues in a group; each gets its own copy."""
    keys: int = 1
    """Routing keys that lead to each group."""
    bindings: int = 0
    """Further bindings of the exchange, which match no message."""
    headers: int = 0
    """Headers that each message carries."""
    priorities: int = 0
    """Levels of the queues and of the messages, in turn; 0: none."""
    arguments: tuple[tuple[str, int | str], ...] = ()
    """Further arguments of the queues."""
    polls: bool = False
    """Consumers ask with basic.get, one message at a time."""
    run: int = 0
    """Which run a message belongs to (0-2047), so that leftovers of another are told apart."""

    @property
    def copies(self) -> int:
        """How often each message is delivered."""
        return self.fan_out * (self.consumers if self.queue_type == "stream" else 1)

    @property
    def ordered(self) -> bool:
        """Whether a queue's consumer gets the messages of one publisher in their order."""
        return not self.priorities


@dataclass(frozen=True)
class Schedule:
    """When a run starts, and the span that is measured: nanoseconds of time.monotonic_ns()."""

    start: int
    measured_from: int
    measured_until: int
    end: int
    """When publishers stop: a little after the span, so that its last moment is like the others."""


@dataclass
class Rates:
    """Counts at the two ends of the measured span, as far as the worker's loop came to look."""

    began: int = 0
    ended: int = 0
    first: int = 0
    last: int = 0
    processor: float = 0.0
    """Processor seconds of the worker within the span."""

    @property
    def per_second(self) -> float:
        span = self.ended - self.began
        return (self.last - self.first) * 1e9 / span if span > 0 else 0.0


@dataclass
class Published:
    """What one publisher did."""

    publisher: int
    sent: int = 0
    confirmed: int = 0
    nacked: int = 0
    sending: Rates = field(default_factory=Rates)
    confirming: Rates = field(default_factory=Rates)


@dataclass
class Consumed:
    """What one consumer saw."""

    count: int = 0
    counts: list[int] = field(default_factory=list)
    """Messages by publisher."""
    sums: list[int] = field(default_factory=list)
    """Sums of their numbers by publisher: with the counts, they prove that each came once."""
    reordered: int = 0
    """Messages that came after a later one of the same publisher."""
    redelivered: int = 0
    foreign: int = 0
    """Messages of another run."""
    latencies: list[int] = field(default_factory=list)
    consuming: Rates = field(default_factory=Rates)
