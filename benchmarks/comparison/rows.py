"""What is measured: loads, by the options of `warren bench`, and the least that Warren's compiled build has to reach."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One load."""

    key: str
    name: str
    options: tuple[str, ...] = ()
    least: float | None = None
    """Times RabbitMQ's rate, at the least."""
    goal: float | None = None
    """What another broker reached on such a machine, times RabbitMQ's rate."""
    most_us: float | None = None
    """Processor time a message, at the most."""
    by_latency: bool = False
    """Its figure is the latency at a fixed rate: at most half of RabbitMQ's at the 99th percentile."""


CONFIRMED = Row("confirmed", "confirmed, acknowledged", (), 2, 2.2, 5)
AUTO_ACK = Row("auto-ack", "auto-ack, no confirms", ("--no-confirms", "--auto-ack"), 2, 3.3)
PERSISTENT = Row("persistent", "persistent, confirmed, acknowledged", ("--persistent",), 2.5, 3.3, 7)

ROWS = (
    CONFIRMED,
    Row("unconfirmed", "acknowledged, no confirms", ("--no-confirms",), 2, 2.5),
    AUTO_ACK,
    PERSISTENT,
    Row("1-kib", "1 KiB, confirmed, acknowledged", ("--size", "1024"), 2, 3),
    Row("window-1", "one at a time (window 1)", ("--window", "1"), 1.5),
    Row("window-10", "ten at a time (window 10)", ("--window", "10")),
    Row("fan-out", "fan-out to 10 queues", ("--fan-out", "10"), 2),
    Row("queues", "1,000 queues in turn", ("--queues", "1000"), 1.5),
    Row(
        "topic",
        "topic with 10,000 bindings, 1,000 keys",
        ("--exchange", "topic", "--queues", "10", "--keys", "100", "--bindings", "10000"),
        2,
    ),
    Row("rate-1000", "latency at 1,000 a second", ("--rate", "1000"), by_latency=True),
    Row("rate-10000", "latency at 10,000 a second", ("--rate", "10000"), by_latency=True),
)
"""Of `make bench`."""

FURTHER = (
    Row(
        "64-kib",
        "64 KiB, confirmed, acknowledged",
        ("--size", "65536", "--window", "100", "--prefetch", "100"),
    ),
    Row("headers", "ten headers each, confirmed, acknowledged", ("--headers", "10")),
    Row("priorities", "ten priorities, confirmed, acknowledged", ("--priorities", "10")),
    Row("by-fanout", "through a fanout exchange", ("--exchange", "fanout")),
    Row("by-direct", "through a direct exchange", ("--exchange", "direct")),
    Row("by-topic", "through a topic exchange", ("--exchange", "topic")),
    Row("by-headers", "through a headers exchange", ("--exchange", "headers")),
    # At a rate that polling can follow: what it leaves would have to be polled afterwards.
    Row("get", "basic.get in a loop, 2,000 a second", ("--get", "--ack-every", "1", "--rate", "2000")),
    Row("window-1-persistent", "persistent, one at a time", ("--window", "1", "--persistent")),
    Row("window-100", "a hundred at a time (window 100)", ("--window", "100")),
)
"""Of `make bench-full`, besides."""


@dataclass(frozen=True)
class Quantity:
    """One figure of a broker that is no load."""

    key: str
    name: str
    unit: str
    most: float | None = None
    """Of Warren's compiled build, at the most."""
    full: bool = False
    """Measured by `make bench-full` only."""


QUANTITIES = (
    Quantity("start", "start to first accepted message", "ms", 300),
    Quantity("idle", "memory at rest", "MB", 40),
    Quantity("waiting", "memory a waiting 16 B message", "bytes", 250),
    # None, that is: what a process keeps for its reads and a descriptor a segment come to a byte or two.
    Quantity("paged", "memory a waiting 16 B message on disk only (delta; RabbitMQ: lazy)", "bytes", 5),
    Quantity("connection", "memory an idle connection", "KB", full=True),
    Quantity("queue", "memory an empty durable queue", "KB", full=True),
    Quantity("connections", "connections opened and closed", "a second", full=True),
    Quantity("channels", "channels opened and closed", "a second", full=True),
    Quantity("backlog-in", "a backlog of persistent messages in", "a second", full=True),
    Quantity("backlog-out", "the backlog out, in order", "a second", full=True),
    Quantity("normal-in", "16 B persistent, into a normal queue without consumers", "a second", full=True),
    Quantity("lazy-in", "16 B persistent, into a lazy queue without consumers", "a second", full=True),
    Quantity("transactions", "sure by a transaction a message", "a second", full=True),
    Quantity("single", "sure by a confirm a message", "a second", full=True),
    Quantity("batches", "sure by confirms in batches of 100", "a second", full=True),
    Quantity("window", "sure by confirms in a window of 1,000", "a second", full=True),
)
