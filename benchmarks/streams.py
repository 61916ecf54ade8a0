"""Benchmark of a long stream: publish millions of messages, restart and kill the broker, and read them twice.

    python -m benchmarks.streams --count 10000000 --out benchmarks/results/DATE-streams.md

One publisher and one consumer on loopback, window and prefetch 1,000. Every message is checked at each reading.
Resident memory is the broker's maximum while the stream is written and read. The results include the disk's own speed.
"""

from __future__ import annotations

import argparse
import platform
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

from benchmarks.backlog import cells, commit, compiled, disk_speed, drain, fill
from tests.support.broker_process import BrokerProcess

STREAM = "stream"
FIRST = {"x-stream-offset": "first"}

HEADS = [
    "messages",
    *(
        f"{way}: {what}"
        for way in ("in", "out", "out again")
        for what in ("a second", "slowest second", "longest stall, s", "resident, MB")
    ),
    "disk, bytes a message",
    "start after a stop, s",
    "start after a kill, s",
]


def run(count: int, size: int) -> list[str]:
    """Run one stream through all phases, and return its row of the table."""
    with tempfile.TemporaryDirectory(prefix="warren-streams-") as name:
        broker = BrokerProcess(Path(name) / "data", "--log-level", "warning")
        broker.start()
        filled = fill(broker.url, broker.pid, STREAM, {"x-queue-type": "stream"}, count, size)
        disk = sum(file.stat().st_size for file in (Path(name) / "data" / "streams").iterdir())
        read = drain(broker.url, broker.pid, STREAM, count, FIRST)
        broker.stop()
        begun = time.monotonic()
        broker.start(timeout=600)
        clean = time.monotonic() - begun
        broker.kill()
        begun = time.monotonic()
        broker.start(timeout=600)
        killed = time.monotonic() - begun
        again = drain(broker.url, broker.pid, STREAM, count, FIRST)
        broker.stop()
    return [
        f"{count:,} of {size:,} B",
        *(cell for phase in (filled, read, again) for cell in cells(phase)),
        f"{disk / count:.0f}",
        f"{clean:.1f}",
        f"{killed:.1f}",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.streams", description=__doc__)
    parser.add_argument("--count", type=int, default=1_000_000, help="messages (default: %(default)s)")
    parser.add_argument("--size", type=int, default=16, help="bytes of a body (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="write the table there, in Markdown")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="warren-streams-") as name:
        speed, syncs = disk_speed(Path(name))
    # Of 1 KiB about as many bytes.
    rows = [run(options.count, options.size), run(max(options.count // 10, 1), 1024)]
    lines = [
        f"# A stream of {options.count:,} messages of {options.size} B",
        "",
        f"`python -m benchmarks.streams --count {options.count} --size {options.size}`, {date.today()}, commit {commit()}, "
        f"{'compiled' if compiled() else 'plain'} build, Python {platform.python_version()}. "
        f"The disk alone: {speed:.0f} MB/s, {syncs:.0f} synced writes a second.",
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


if __name__ == "__main__":
    sys.exit(main())
