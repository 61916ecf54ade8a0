"""Benchmark of writing with Spark: processor time per message of the Python worker, and its memory.

    python -m benchmarks.pipeline.writing --out benchmarks/results/DATE-pipeline-writing.md

One task writes rows that Java generates, several times for each kind: persistent, mandatory and confirmed, with at most
10,000 unconfirmed. The figure is the user and system time of Spark's Python processes, planning included, because it
depends little on other work on the machine; Java and the broker are separate processes. The queue keeps the last 1,000
messages, so that the broker needs little disk space. Memory is the maximum of a Python process, for two writes of which
one is several times as long.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from benchmarks.backlog import commit
from benchmarks.pipeline.reading import brokers, processor_time, processor_time_since, pythons, resident
from warren.core.blocking_connection import BlockingConnection
from warren.pipeline import register
from warren.pipeline.spark_session import spark_session
from warren.wire import field_tables
from warren.wire.amqp_url import parse_url

QUEUE = "written"
BODY = "LPAD(STRING(id), 16, '0')"
ID = "CONCAT('0190f5e0-0000-7000-8000-', LPAD(STRING(id), 12, '0')) AS message_id"
KINDS = {
    "bare": ("16 B, ids derived", [f"{BODY} AS body"]),
    "ids": ("16 B, ids given", [f"{BODY} AS body", ID]),
    "full": (
        "16 B, with id, time, type, content type and two headers",
        [
            f"{BODY} AS body",
            ID,
            "TIMESTAMP_SECONDS(1700000000 + id) AS timestamp",
            "'order_paid' AS type",
            "'application/json' AS content_type",
            "MAP('tenant', 'a', 'attempt', '1') AS headers",
        ],
    ),
    "larger": ("1 KiB, ids derived", [f"REPEAT({BODY}, 64) AS body"]),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pipeline.writing", description=__doc__)
    parser.add_argument("--count", type=int, default=300_000, help="messages (default: %(default)s)")
    parser.add_argument("--runs", type=int, default=3, help="writes of each (default: %(default)s)")
    parser.add_argument(
        "--longer", type=int, default=2_000_000, help="messages of the longer one (default: %(default)s)"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the tables there, too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="warren-writing-") as name:
        rates, memory = measured(Path(name), options.count, options.runs, options.longer)
    text = report(rates, memory, options)
    print(text)
    if options.out is not None:
        options.out.write_text(text)
    return 0


def measured(folder: Path, count: int, runs: int, longer: int) -> tuple[list[str], list[str]]:
    """Return the rows of both tables."""
    rates: list[str] = []
    memory: list[str] = []
    for broker, url in brokers(folder):
        declare(url)
        with spark_session("writing", "local[1]", folder / "spark.log") as spark:
            register(spark)
            rates += [rate(spark, broker, url, kind, count, runs) for kind in KINDS]
        for size in (longer // 10, longer):
            # A session of its own, so that its processes have written nothing else.
            with spark_session("writing", "local[1]", folder / "spark.log") as spark:
                register(spark)
                write(url, frame(spark, "bare", size))
                highest = max(resident(pid) for pid in pythons(spark))
            memory.append(f"| {broker} | {size:,} | {highest:.0f} |")
    return rates, memory


def declare(url: str) -> None:
    connection = BlockingConnection(parse_url(url), 60)
    arguments = field_tables.encode({"x-max-length": 1000})
    connection.call("queue.declare", 0, QUEUE.encode(), False, True, False, False, False, arguments)
    connection.close()


def rate(spark: SparkSession, broker: str, url: str, kind: str, count: int, runs: int) -> str:
    """Return a row: the median of several writes, after a small one that starts all processes."""
    write(url, frame(spark, kind, 1000))
    spent: list[float] = []
    clocks: list[float] = []
    for _ in range(runs):
        before, begun = processor_time(spark), time.monotonic()
        write(url, frame(spark, kind, count))
        clocks.append(count / (time.monotonic() - begun))
        spent.append(processor_time_since(spark, before) / count * 1e6)
    each = statistics.median(spent)
    return (
        f"| {broker} | {KINDS[kind][0]} | {each:.1f} | {1e6 / each:,.0f} | {statistics.median(clocks):,.0f} |"
    )


def frame(spark: SparkSession, kind: str, count: int) -> DataFrame:
    return spark.range(0, count, 1, 1).selectExpr(*KINDS[kind][1])


def write(url: str, frame: DataFrame) -> None:
    writer = frame.write.format("amqp").options(url=url, exchange="", routingKey=QUEUE, timeout="120")
    writer.mode("append").save()


def report(rates: list[str], memory: list[str], options: argparse.Namespace) -> str:
    lines = [
        "# Writing with Spark",
        "",
        f"`python -m benchmarks.pipeline.writing --count {options.count} --runs {options.runs} "
        f"--longer {options.longer}`, {date.today()}, commit {commit()}, Python {platform.python_version()}, "
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}. One task; the middle of {options.runs} writes of "
        f"{options.count:,} messages, each of them confirmed.",
        "",
        "| broker | messages | Python, µs a message | a second and core of Python | a second by the clock |",
        "|---|---|---|---|---|",
        *rates,
        "",
        "| broker | messages | Python's most memory, MB |",
        "|---|---|---|",
        *memory,
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
