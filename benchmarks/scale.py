"""Benchmark of many idle connections, queues and bindings, and of large messages: memory, and the cost of one publish.

`python -m benchmarks.scale` prints the table that is stored under `benchmarks/results/`.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path

from pamqp import commands

from tests.support.broker_process import BrokerProcess
from tests.support.frames import publish_frames
from tests.support.processes import resident_kib
from tests.support.raw_client import RawClient, encoded, made, raw_connection
from warren.broker.bench import processor_time

PUBLISHES = 20_000
SINGLE = 300
"""Publishes that are confirmed one by one."""
WINDOW = 500
FACTOR = 2.0
"""Highest allowed cost of a publish with many bindings, as a multiple of that with ten."""
LARGE = 128 * 1024 * 1024
"""Bytes of a large message: more than the broker accepts by default."""
FILES = 20_000
"""File descriptors that this program needs for its connections."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("--python", default=sys.executable, help="whose Warren (default: this one's)")
    parser.add_argument("--connections", type=int, default=5_000)
    parser.add_argument("--queues", type=int, default=10_000)
    parser.add_argument("--bindings", type=int, default=64_000)
    parser.add_argument("--large", type=int, default=5, help="messages of 128 MiB (default: %(default)s)")
    options = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(FILES, hard), hard))
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()
    print(f"{datetime.now(UTC):%Y-%m-%d}, commit {commit}, Python {sys.version.split()[0]}\n")
    print("| What | Memory before | with it | each | One publish, until its confirm |")
    print("|---|---|---|---|---|")
    measured(options.python, f"{options.connections:,} idle connections", options.connections, idle)
    measured(options.python, f"{options.queues:,} durable queues", options.queues, many_queues)
    large_messages(options.python, options.large)
    few, many = bound(options.python, 10), bound(options.python, options.bindings)
    print(
        f"\nProcessor time of one publish to a topic exchange, keys never seen before: {few:.1f} µs with 10 bindings, "
        f"{many:.1f} µs with {options.bindings:,}: a factor of {many / few:.2f}."
    )
    return 0 if many <= FACTOR * few else 1


@contextmanager
def broker(python: str, *further: str) -> Iterator[BrokerProcess]:
    with (
        tempfile.TemporaryDirectory(prefix="warren-scale-") as folder,
        BrokerProcess(Path(folder), "--log-level", "error", *further, python=python) as process,
    ):
        yield process


def measured(python: str, what: str, count: int, fill: Callable[[ExitStack, str, int], None]) -> None:
    """Print a row: memory before and after the items are created, and the cost of one publish with them."""
    with broker(python) as process, ExitStack() as held:
        before = resident_kib(process.pid)
        fill(held, process.url, count)
        after = resident_kib(process.pid)
        print(row(what, before, after, count, one_publish(process.url)), flush=True)


def row(what: str, before: int, after: int, count: int, publish: float) -> str:
    """Return a line of the table: KiB before and after, and seconds for a publish."""
    return (
        f"| {what} | {before / 1024:.0f} MiB | {after / 1024:.0f} MiB | {(after - before) / count:.1f} KiB | "
        f"{publish * 1e6:.0f} µs |"
    )


def idle(held: ExitStack, url: str, count: int) -> None:
    for _ in range(count):
        client = RawClient(url).connect()
        held.callback(client.abort)


def many_queues(held: ExitStack, url: str, count: int) -> None:
    with raw_connection(url) as client:
        client.open()
        for number in range(count):
            client.declare_queue(f"queue-{number}", durable=True)


def large_messages(python: str, count: int) -> None:
    """Print a row: memory before, and the most with large messages that are published, kept and fetched again."""
    with broker(python, "--max-message-size", str(LARGE)) as process, raw_connection(process.url) as client:
        client.open()
        client.declare_queue("large", durable=True)
        client.select_confirms()
        before = resident_kib(process.pid)
        spans = []
        for number in range(count):
            message = publish_frames(1, "", "large", bytes([number % 256]) * LARGE, persistent=True)
            started = time.perf_counter()
            client.send_bytes(message)
            client.expect_frame((60, 80))
            spans.append(time.perf_counter() - started)
        for number in range(count):
            client.send_bytes(encoded(made(commands.Basic.Get, queue="large", no_ack=True)))
            client.expect_frame((60, 71))
            client.read_frame()
            left = LARGE
            while left:
                piece = client.read_frame().payload
                assert piece.count(number % 256) == len(piece), "a body differs from what was published"
                left -= len(piece)
        most = peak_kib(process.pid)
        print(
            row(f"{count:,} messages of 128 MiB", before, most, count, statistics.median(spans)), flush=True
        )


def peak_kib(pid: int) -> int:
    """Return the most memory that a process has had resident, in KiB (Linux)."""
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1])


def bound(python: str, count: int) -> float:
    """Return microseconds of processor time for a publish to a topic exchange with this number of bindings, one of which
    matches."""
    with broker(python) as process, raw_connection(process.url) as client:
        client.open()
        client.declare_queue("sink", exclusive=True)
        client.send_bytes(encoded(made(commands.Exchange.Declare, exchange="wide", exchange_type="topic")))
        client.expect_frame((40, 11))
        before = resident_kib(process.pid)
        for start in range(0, count, WINDOW):
            numbers = range(start, min(start + WINDOW, count))
            client.send_bytes(b"".join(binding(f"sensor.{number}.*") for number in numbers))
            for _ in numbers:
                client.expect_frame((50, 21))
        after = resident_kib(process.pid)
        print(
            row(f"{count:,} bindings on one topic exchange", before, after, count, one_publish(process.url))
        )
        client.select_confirms()
        costs: list[float] = []
        for run in range(3):
            started = processor_time.seconds(process.pid)
            publish_all(client, count, run)
            costs.append((processor_time.seconds(process.pid) - started) / PUBLISHES * 1e6)
            client.send_bytes(encoded(made(commands.Queue.Purge, queue="sink")))
            client.expect_frame((50, 31))
        return statistics.median(costs)


def binding(key: str) -> bytes:
    return encoded(made(commands.Queue.Bind, queue="sink", exchange="wide", routing_key=key))


def publish_all(client: RawClient, bindings: int, run: int) -> None:
    """Publish with a new routing key for each message, `WINDOW` at a time."""
    settled = PUBLISHES * run
    for start in range(0, PUBLISHES, WINDOW):
        for number in range(start, start + WINDOW):
            client.publish("wide", f"sensor.{number % bindings}.{run}-{number}", b"x" * 16)
        while settled < PUBLISHES * run + start + WINDOW:
            tag = int.from_bytes(client.expect_frame((60, 80)).arguments[:8])
            settled = max(settled, tag)


def one_publish(url: str) -> float:
    """Return the median of the seconds from a publish to its confirm."""
    with raw_connection(url) as client:
        client.open()
        client.declare_queue("single", exclusive=True)
        client.select_confirms()
        spans = []
        for _ in range(SINGLE):
            started = time.perf_counter()
            client.publish("", "single", b"x" * 16)
            client.expect_frame((60, 80))
            spans.append(time.perf_counter() - started)
        return statistics.median(spans)


if __name__ == "__main__":
    sys.exit(main())
