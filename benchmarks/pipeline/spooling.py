"""Benchmark of a spool: processor time per message into and out of its files, and memory.

    python -m benchmarks.pipeline.spooling --out benchmarks/results/DATE-pipeline-spooling.md

A queue is filled, and a process without Java consumes it into a spool, each message synced before it is acknowledged,
and reads it into Arrow: the work of Spark's driver and tasks in Python. Then the same with ten times as many messages.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

from pyspark.sql.streaming.datasource import ReadAllAvailable

from benchmarks.backlog import commit
from benchmarks.pipeline.reading import KINDS, brokers, fill
from warren.pipeline.spool.spark_reader import SpoolReader
from warren.pipeline.spool.spool_options import SpoolOptions

KIND = "ids"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pipeline.spooling", description=__doc__)
    parser.add_argument("--count", type=int, default=100_000, help="messages, and then ten times as many")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the table there, too")
    parser.add_argument("--work", nargs=3, metavar=("URL", "QUEUE", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        print(json.dumps(work(*options.work)))
        return 0
    with tempfile.TemporaryDirectory(prefix="warren-spooling-") as name:
        read_rows = [
            row(broker, url, count, Path(name) / f"{broker}-{count}")
            for broker, url in brokers(Path(name))
            for count in (options.count, options.count * 10)
        ]
    lines = [
        "# A queue through a spool",
        "",
        f"`python -m benchmarks.pipeline.spooling --count {options.count}`, {date.today()}, commit {commit()}, "
        f"Python {platform.python_version()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}. "
        f"Messages: {KINDS[KIND]}.",
        "",
        "| broker | messages | into the spool, a second and core | by the clock | out of it, a second and core | "
        "most memory, MB |",
        "|---|---|---|---|---|---|",
        *read_rows,
        "",
    ]
    text = "\n".join(lines)
    print(text)
    if options.out is not None:
        options.out.write_text(text)
    return 0


def row(broker: str, url: str, count: int, folder: Path) -> str:
    """Measure one queue in a process of its own, and return its row."""
    queue = f"spooling.{count}"
    fill(url, queue, KIND, count, stream=False)
    words = [sys.executable, "-m", "benchmarks.pipeline.spooling", "--work", url, queue, str(folder)]
    done = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
    assert done["rows"] == count, f"{done['rows']} of {count} messages came"
    into, clock, out = (count / done[name] for name in ("into", "clock", "out"))
    return f"| {broker} | {count:,} | {into:,.0f} | {clock:,.0f} | {out:,.0f} | {done['megabytes']:.0f} |"


def work(url: str, queue: str, folder: str) -> dict[str, float]:
    """Return seconds of processor time into the spool and out of it, and of elapsed time into it."""
    reader = SpoolReader(
        SpoolOptions.from_options({"url": url, "queue": queue, "spooldir": folder, "timeout": "120"})
    )
    used, began = time.process_time(), time.monotonic()
    reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    into, clock = time.process_time() - used, time.monotonic() - began
    used, read_rows = time.process_time(), 0
    for piece in reader.partitions(start, end):
        read_rows += sum(to_record_batch.num_rows for to_record_batch in reader.read(piece))
    out = time.process_time() - used
    reader.stop()
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"into": into, "clock": clock, "out": out, "rows": read_rows, "megabytes": most}


if __name__ == "__main__":
    sys.exit(main())
