"""Measured workloads, by the options of `warren bench`, and the bounds that Warren's compiled build must meet."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Workload:
    """One load."""

    key: str
    name: str
    options: tuple[str, ...] = ()
    least: float | None = None
    """Minimum rate, as a multiple of RabbitMQ's."""
    goal: float | None = None
    """Rate that another broker reached on such a machine, as a multiple of RabbitMQ's."""
    most_us: float | None = None
    """Maximum processor time per message in microseconds."""
    by_latency: bool = False
    """True if the figure is the latency at a fixed rate, with a bound of half of RabbitMQ's 99th percentile."""


CONFIRMED = Workload("confirmed", "confirmed, acknowledged", (), 2, 2.2, 5)
AUTO_ACK = Workload("auto-ack", "auto-ack, no confirms", ("--no-confirms", "--auto-ack"), 2, 3.3)
PERSISTENT = Workload("persistent", "persistent, confirmed, acknowledged", ("--persistent",), 2.5, 3.3, 7)

_MIXED = ("--mixed", "--single-writes")

DISTINCT_WORKLOADS = (
    Workload("mixed", "mixed", _MIXED),
    Workload("mixed-persistent", "mixed, persistent", (*_MIXED, "--persistent")),
    Workload("mixed-batched", "mixed, many in a write", ("--mixed",)),
)
"""Workloads of `make bench` in which no two messages are alike, as in applications."""

BULK_WORKLOADS = (
    CONFIRMED,
    Workload("unconfirmed", "acknowledged, no confirms", ("--no-confirms",), 2, 2.5),
    AUTO_ACK,
    PERSISTENT,
    Workload("1-kib", "1 KiB, confirmed, acknowledged", ("--size", "1024"), 2, 3),
    Workload("window-1", "one at a time (window 1)", ("--window", "1"), 1.5),
    Workload("window-10", "ten at a time (window 10)", ("--window", "10")),
    Workload("fan-out", "fan-out to 10 queues", ("--fan-out", "10"), 2),
    Workload("queues", "1,000 queues in turn", ("--queues", "1000"), 1.5),
    Workload(
        "topic",
        "topic with 10,000 bindings, 1,000 keys",
        ("--exchange", "topic", "--queues", "10", "--keys", "100", "--bindings", "10000"),
        2,
    ),
    Workload("rate-1000", "latency at 1,000 per second", ("--rate", "1000"), by_latency=True),
    Workload("rate-10000", "latency at 10,000 per second", ("--rate", "10000"), by_latency=True),
)
"""Workloads of `make bench` with equal messages, many of which a publisher writes at once if its window permits."""

WORKLOADS = DISTINCT_WORKLOADS + BULK_WORKLOADS
"""Workloads of `make bench`."""

FULL_WORKLOADS = (
    Workload(
        "64-kib",
        "64 KiB, confirmed, acknowledged",
        ("--size", "65536", "--window", "100", "--prefetch", "100"),
    ),
    Workload("headers", "ten headers each, confirmed, acknowledged", ("--headers", "10")),
    Workload("priorities", "ten priorities, confirmed, acknowledged", ("--priorities", "10")),
    Workload("by-fanout", "through a fanout exchange", ("--exchange", "fanout")),
    Workload("by-direct", "through a direct exchange", ("--exchange", "direct")),
    Workload("by-topic", "through a topic exchange", ("--exchange", "topic")),
    Workload("by-headers", "through a headers exchange", ("--exchange", "headers")),
    # At a rate that polling can follow: otherwise the rest would have to be polled afterwards.
    Workload("get", "basic.get in a loop, 2,000 per second", ("--get", "--ack-every", "1", "--rate", "2000")),
    Workload("window-1-persistent", "persistent, one at a time", ("--window", "1", "--persistent")),
    Workload("window-100", "a hundred at a time (window 100)", ("--window", "100")),
)
"""Additional workloads of `make bench-full`."""


@dataclass(frozen=True)
class Quantity:
    """Figure of a broker other than a load."""

    key: str
    name: str
    unit: str
    most: float | None = None
    """Maximum for Warren's compiled build."""
    full: bool = False
    """True if only `make bench-full` measures it."""


QUANTITIES = (
    Quantity("start", "start to first accepted message", "ms", 300),
    Quantity("idle", "memory of an idle broker", "MB", 40),
    Quantity("waiting", "memory per ready 16 B message", "bytes", 250),
    # Practically none: read buffers and a file descriptor for each segment amount to a byte or two per message.
    Quantity("paged", "memory per ready 16 B message on disk only (delta; RabbitMQ: lazy)", "bytes", 5),
    Quantity("connection", "memory per idle connection", "KB", full=True),
    Quantity("queue", "memory per empty durable queue", "KB", full=True),
    Quantity("connections", "connections opened and closed", "per second", full=True),
    Quantity("channels", "channels opened and closed", "per second", full=True),
    Quantity("backlog-in", "publishing a backlog of persistent messages", "per second", full=True),
    Quantity("backlog-out", "consuming the backlog, in order", "per second", full=True),
    Quantity("normal-in", "16 B persistent, into a normal queue without consumers", "per second", full=True),
    Quantity("lazy-in", "16 B persistent, into a lazy queue without consumers", "per second", full=True),
    Quantity("transactions", "a transaction for each message", "per second", full=True),
    Quantity("single", "a confirm for each message", "per second", full=True),
    Quantity("batches", "confirms in batches of 100", "per second", full=True),
    Quantity("window", "confirms in a window of 1,000", "per second", full=True),
)
