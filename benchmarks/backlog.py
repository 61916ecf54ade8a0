"""Benchmark of a long queue: publish millions of messages, restart the broker, and consume them in order.

    python -m benchmarks.backlog --count 10000000 --out benchmarks/results/DATE-backlog.md

One publisher and one consumer on loopback, window and prefetch 1,000, persistent messages, once with a normal and once
with a lazy queue. Resident memory is the broker's maximum while the queue is filled and drained. The results include
the disk's own speed.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from tests.support.broker_process import BrokerProcess
from warren.broker.bench.load_topology import PublishTarget
from warren.broker.bench.message_flow import ConfirmCounter, DeliveryChecker, PublishBuffer, sequence_prefix
from warren.core.blocking_connection import CHANNEL, BlockingConnection
from warren.wire import field_tables
from warren.wire.amqp_url import parse_url
from warren.wire.content import DELIVERY_MODE

WINDOW = 1000
SPAN = 1.0
"""Seconds of the interval for the lowest rate."""


@dataclass
class Phase:
    """Filling or draining: rate, pauses, and memory."""

    count: int
    seconds: float
    slowest: float
    """The lowest rate of a span of one second, a second."""
    stall: float
    """The longest time without progress, in seconds."""
    resident: int
    """The most that the broker's process had in memory, in bytes."""

    @property
    def rate(self) -> float:
        return self.count / self.seconds


class Watch:
    """Record of the times during a phase."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.begun = self.progress = self.span = time.monotonic()
        self.at_span = 0
        self.slowest = float("inf")
        self.stall = 0.0
        self.resident = 0

    def look(self, count: int, moved: bool) -> None:
        now = time.monotonic()
        if moved:
            self.stall = max(self.stall, now - self.progress)
            self.progress = now
        if now - self.span >= SPAN:
            self.slowest = min(self.slowest, (count - self.at_span) / (now - self.span))
            self.span, self.at_span = now, count
            self.resident = max(self.resident, resident(self.pid))

    def phase(self, count: int) -> Phase:
        self.resident = max(self.resident, resident(self.pid))
        return Phase(count, time.monotonic() - self.begun, self.slowest, self.stall, self.resident)


def resident(pid: int) -> int:
    """Return a process's resident memory in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def fill(url: str, pid: int, queue: str, arguments: dict[str, str], count: int, size: int) -> Phase:
    connection = BlockingConnection(parse_url(url))
    table = field_tables.encode({**arguments})
    connection.call("queue.declare", 0, queue.encode(), False, True, False, False, False, table)
    connection.call("confirm.select", False)
    address = PublishTarget(b"", queue.encode(), b"\x02", DELIVERY_MODE)
    batch = PublishBuffer([address], size, WINDOW // 4, connection.frame_max, CHANNEL, sequence_prefix(0, 0))
    confirms = ConfirmCounter()
    view = memoryview(batch.data)
    sent = 0
    watch = Watch(pid)
    connection.socket.settimeout(120)
    while confirms.settled < count:
        room = min(WINDOW - (sent - confirms.settled), batch.capacity, count - sent)
        if room >= min(batch.capacity, count - sent) and room:
            batch.stamp(sent + 1, room, time.monotonic_ns())
            connection.socket.sendall(view[: room * batch.length])
            sent += room
            continue
        before = confirms.settled
        hear(connection, confirms)
        watch.look(confirms.settled, confirms.settled > before)
    assert not confirms.nacked
    phase = watch.phase(count)
    connection.buffer = confirms.rest
    connection.close()
    return phase


def drain(url: str, pid: int, queue: str, count: int, arguments: dict[str, str] | None = None) -> Phase:
    connection = BlockingConnection(parse_url(url))
    connection.call("basic.qos", 0, WINDOW, False)
    deliveries = DeliveryChecker(0, 1, WINDOW // 2, CHANNEL)
    table = field_tables.encode({**(arguments or {})})
    connection.call("basic.consume", 0, queue.encode(), b"", False, False, False, False, table)
    watch = Watch(pid)
    connection.socket.settimeout(120)
    data = connection.buffer
    while True:
        before = deliveries.count
        deliveries.feed(data, time.monotonic_ns())
        if deliveries.count >= count:
            deliveries.acknowledge()
        if deliveries.acks:
            connection.socket.sendall(b"".join(deliveries.acks))
            deliveries.acks.clear()
        for frame in deliveries.other:
            connection.raise_if_closed(frame)
        watch.look(deliveries.count, deliveries.count > before)
        if deliveries.count >= count:
            break
        data = connection.socket.recv(1 << 18)
        if not data:
            raise ConnectionError("the broker closed the connection")
    deliveries.flush_counters()
    assert deliveries.counts == [count], deliveries.counts
    assert deliveries.sums == [count * (count + 1) // 2]
    assert not deliveries.reordered, f"{deliveries.reordered} out of order"
    phase = watch.phase(count)
    connection.buffer = deliveries.rest
    connection.close()
    return phase


def hear(connection: BlockingConnection, confirms: ConfirmCounter) -> None:
    data = connection.socket.recv(1 << 18)
    if not data:
        raise ConnectionError("the broker closed the connection")
    confirms.feed(data)
    for frame in confirms.other:
        connection.raise_if_closed(frame)
    confirms.other.clear()


def disk_speed(folder: Path) -> tuple[float, float]:
    """Return megabytes per second written with one sync at the end, and small synced writes per second."""
    path = folder / "speed"
    block = os.urandom(1 << 20)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    begun = time.monotonic()
    for _ in range(512):
        os.write(handle, block)
    os.fdatasync(handle)
    written = 512 / (time.monotonic() - begun)
    begun, syncs = time.monotonic(), 0
    while time.monotonic() - begun < 2:
        os.write(handle, b"x" * 4096)
        os.fdatasync(handle)
        syncs += 1
    os.close(handle)
    path.unlink()
    return written, syncs / 2


def run(lazy: bool, count: int, size: int, memory: str) -> list[str]:
    """Run one queue through all phases, and return its row of the table."""
    with tempfile.TemporaryDirectory(prefix="warren-backlog-") as name:
        broker = BrokerProcess(Path(name) / "data", "--memory-limit", memory, "--log-level", "warning")
        broker.start()
        queue = "lazy" if lazy else "normal"
        arguments = {"x-queue-mode": "lazy"} if lazy else {}
        filled = fill(broker.url, broker.pid, queue, arguments, count, size)
        disk = sum(file.stat().st_size for file in (Path(name) / "data" / "log").iterdir())
        begun = time.monotonic()
        broker.stop()
        stopping = time.monotonic() - begun
        begun = time.monotonic()
        broker.start(timeout=600)
        clean = time.monotonic() - begun
        broker.kill()
        begun = time.monotonic()
        broker.start(timeout=600)
        killed = time.monotonic() - begun
        drained = drain(broker.url, broker.pid, queue, count)
        broker.stop()
    return [
        f"{queue}, {size} B",
        f"{count:,}",
        *(cell for phase in (filled, drained) for cell in cells(phase)),
        f"{disk / count:.0f}",
        f"{stopping:.1f}",
        f"{clean:.1f}",
        f"{killed:.1f}",
    ]


def cells(phase: Phase) -> list[str]:
    return [
        f"{phase.rate / 1000:.0f}k",
        f"{phase.slowest / 1000:.0f}k",
        f"{phase.stall:.2f}",
        f"{phase.resident / 1e6:.0f}",
    ]


HEADS = [
    "queue",
    "messages",
    *(
        f"{way}: {what}"
        for way in ("in", "out")
        for what in ("a second", "slowest second", "longest stall, s", "resident, MB")
    ),
    "disk, bytes a message",
    "stop, s",
    "start after a stop, s",
    "start after a kill, s",
]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.backlog", description=__doc__)
    parser.add_argument("--count", type=int, default=1_000_000, help="messages (default: %(default)s)")
    parser.add_argument("--size", type=int, default=16, help="bytes of a body (default: %(default)s)")
    parser.add_argument("--memory-limit", default="400MB", help="of the broker (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="write the table there, in Markdown")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="warren-backlog-") as name:
        speed, syncs = disk_speed(Path(name))
    rows = [run(lazy, options.count, options.size, options.memory_limit) for lazy in (False, True)]
    lines = [
        f"# A backlog of {options.count:,} messages of {options.size} B",
        "",
        f"`python -m benchmarks.backlog --count {options.count} --size {options.size}`, {date.today()}, commit {commit()}, "
        f"{'compiled' if compiled() else 'plain'} build, Python {platform.python_version()}, "
        f"memory limit {options.memory_limit}. The disk alone: {speed:.0f} MB/s, {syncs:.0f} synced writes a second.",
        "",
        "| " + " | ".join(HEADS) + " |",
        "|" + "---|" * len(HEADS),
        *("| " + " | ".join(row) + " |" for row in rows),
        "",
    ]
    text = "\n".join(lines)
    print(text)
    if options.out:
        options.out.write_text(text)
    return 0


def commit() -> str:
    return subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()


def compiled() -> bool:
    module = sys.modules["warren.broker.bench.message_flow"].__file__
    return module is not None and module.endswith(".so")


if __name__ == "__main__":
    sys.exit(main())
