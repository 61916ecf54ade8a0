"""Benchmark of reading with Spark: processor time per message of the Python worker, and its memory.

    python -m benchmarks.pipeline.reading --out benchmarks/results/DATE-pipeline-reading.md

A stream is filled with each kind of message, and a queue with plain ones. Spark then reads each of them several times
in one task without an output (`noop`). The figure is the user and system time of Spark's Python processes, planning
included, because it depends little on other work on the machine; Java and the broker are separate processes. Memory is
the maximum of a Python process, for two streams of which one is ten times as long.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from benchmarks.backlog import commit
from tests.support.broker_process import BrokerProcess
from tests.support.rabbitmq import installed, rabbitmq_server
from warren.core.blocking_connection import BlockingConnection
from warren.pipeline import register
from warren.pipeline.spark_session import spark_session
from warren.wire import field_tables, methods, properties
from warren.wire.amqp_url import parse_url
from warren.wire.content import join_content

TICKS = os.sysconf("SC_CLK_TCK")
WINDOW = 1_000
"""Messages that are published before their confirms are awaited."""
KINDS = {
    "plain": "16 B, type and content type",
    "ids": "16 B, with id, time and the same two headers",
    "traced": "16 B, with id, time and three headers, one of them its own",
    "larger": "1 KiB, with id, time and the same two headers",
}


@dataclass(frozen=True)
class Reading:
    """One read: messages, microseconds of Python's processor time per message, and messages per second of elapsed time."""

    count: int
    microseconds: float
    per_second: float


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pipeline.reading", description=__doc__)
    parser.add_argument("--count", type=int, default=500_000, help="messages (default: %(default)s)")
    parser.add_argument("--runs", type=int, default=3, help="reads of each (default: %(default)s)")
    parser.add_argument(
        "--backlog", type=int, default=2_000_000, help="of the larger stream (default: %(default)s)"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the tables there, too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="warren-reading-") as name:
        folder = Path(name)
        rates, memory = measured(folder, options.count, options.runs, options.backlog)
    text = report(rates, memory, options)
    print(text)
    if options.out is not None:
        options.out.write_text(text)
    return 0


def measured(folder: Path, count: int, runs: int, backlog: int) -> tuple[list[str], list[str]]:
    """Return the rows of both tables."""
    rates: list[str] = []
    memory: list[str] = []
    for broker, url in brokers(folder):
        with spark_session("reading", "local[1]", folder / "spark.log") as spark:
            register(spark)
            for kind, words in KINDS.items():
                name = f"reading.{kind}"
                fill(url, name, kind, count, stream=True)
                rates.append(rate(spark, broker, f"stream, {words}", url, {"stream": name}, count, runs))
            fill(url, "reading.queue", "plain", count, stream=False)
            rates.append(
                rate(spark, broker, f"queue, {KINDS['plain']}", url, {"queue": "reading.queue"}, count, runs)
            )
        for size in (backlog // 10, backlog):
            name = f"backlog.{size}"
            fill(url, name, "ids", size, stream=True)
            # A session of its own, so that its processes have read nothing else.
            with spark_session("reading", "local[1]", folder / "spark.log") as spark:
                register(spark)
                read(frame(spark, url, {"stream": name, "messagesPerTask": str(size)}))
                highest = max(resident(pid) for pid in pythons(spark))
            memory.append(f"| {broker} | {size:,} | {highest:.0f} |")
    return rates, memory


def brokers(folder: Path) -> Iterator[tuple[str, str]]:
    with BrokerProcess(folder / "broker", "--log-level", "warning") as broker:
        yield "Warren", broker.url
    if installed():
        with rabbitmq_server() as server:
            yield "RabbitMQ", server.url


def fill(url: str, name: str, kind: str, count: int, stream: bool) -> None:
    """Declare a queue or stream, and publish with confirms."""
    connection = BlockingConnection(parse_url(url), 60)
    queue = name.encode()
    arguments = field_tables.encode({"x-queue-type": "stream" if stream else "classic"})
    connection.call("queue.declare", 0, queue, False, True, False, False, False, arguments)
    connection.call("confirm.select", False)
    publish = methods.frame(1, "basic.publish", 0, b"", queue, False, False)
    frames = [publish + content(kind, number) for number in range(min(count, WINDOW))]
    for first in range(0, count, WINDOW):
        if first and kind != "plain":
            frames = [publish + content(kind, number) for number in range(first, min(count, first + WINDOW))]
        last = min(first + WINDOW, count)
        connection.socket.sendall(b"".join(frames[: last - first]))
        # Confirms may cover several, and come in any order of a few.
        covered = 0
        while covered < last:
            confirm = connection.expect("basic.ack")
            covered = max(covered, confirm.number("delivery_tag"))
    connection.close()


def content(kind: str, number: int) -> bytes:
    told: dict[str, properties.Property] = {"content_type": b"application/json", "type": b"order_paid"}
    if kind != "plain":
        headers: dict[str, field_tables.Value] = {
            "warren-attempt": 1,
            "warren-first-published": 1_700_000_000_000,
        }
        if kind == "traced":
            headers["traceparent"] = f"00-{number:032x}-00f067aa0ba902b7-01"
        told["headers"] = field_tables.encode(headers)
        told["message_id"] = b"0190f5e0-0000-7000-8000-%012d" % number
        told["timestamp"] = 1_700_000_000 + number
    body = b"%016d" % number
    if kind == "larger":
        body *= 64
    return join_content(1, properties.encode(told, len(body)), body)


def rate(
    spark: SparkSession,
    broker: str,
    words: str,
    url: str,
    options: dict[str, str],
    count: int,
    runs: int,
) -> str:
    """Return a row: the median of several reads, after a small one that starts all processes."""
    whole = frame(spark, url, {**options, "messagesPerTask": str(count)} if "stream" in options else options)
    read(whole.limit(1))
    readings = []
    for _ in range(runs):
        before, begun = processor_time(spark), time.monotonic()
        read(whole)
        clock = time.monotonic() - begun
        spent = processor_time_since(spark, before)
        readings.append(Reading(count, spent / count * 1e6, count / clock))
    found = whole.count()
    assert found == count, f"{found} of {count} messages were read"
    each = statistics.median(reading.microseconds for reading in readings)
    clock = statistics.median(reading.per_second for reading in readings)
    return f"| {broker} | {words} | {each:.1f} | {1e6 / each:,.0f} | {clock:,.0f} |"


def frame(spark: SparkSession, url: str, options: dict[str, str]) -> DataFrame:
    return spark.read.format("amqp").options(url=url, timeout="120", **options).load()


def read(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def pythons(spark: SparkSession) -> list[int]:
    """Return Spark's Python processes."""
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with missing():
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    found: list[int] = []
    seen = {gateway.proc.pid}
    while added := {pid for pid, parent in parents.items() if parent in seen and pid not in seen}:
        seen |= added
    for pid in seen - {gateway.proc.pid}:
        with missing():
            if b"python" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def processor_time(spark: SparkSession) -> dict[int, float]:
    """Return the user and system seconds of each Python process. A process remains for later tasks."""
    seconds: dict[int, float] = {}
    for pid in pythons(spark):
        with missing():
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            seconds[pid] = (int(fields[11]) + int(fields[12])) / TICKS
    return seconds


def processor_time_since(spark: SparkSession, before: dict[int, float]) -> float:
    """Return the seconds of all remaining processes; those that ended did the planning."""
    return sum(after - before.get(pid, 0.0) for pid, after in processor_time(spark).items())


def resident(pid: int) -> float:
    """Return a process's maximum resident memory in MB."""
    with missing():
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    return 0.0


@contextmanager
def missing() -> Iterator[None]:
    """Ignore processes that end while they are inspected."""
    with suppress(FileNotFoundError, ProcessLookupError):
        yield


def report(rates: list[str], memory: list[str], options: argparse.Namespace) -> str:
    lines = [
        "# Reading with Spark",
        "",
        f"`python -m benchmarks.pipeline.reading --count {options.count} --runs {options.runs} "
        f"--backlog {options.backlog}`, {date.today()}, commit {commit()}, Python {platform.python_version()}, "
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}. One task; the middle of {options.runs} reads of "
        f"{options.count:,} messages.",
        "",
        "| broker | messages | Python, µs a message | a second and core of Python | a second by the clock |",
        "|---|---|---|---|---|",
        *rates,
        "",
        "Memory of the Python worker, and what the stream holds:",
        "",
        "| broker | messages in the stream | highest resident, MB |",
        "|---|---|---|",
        *memory,
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
