"""Benchmark of the memory that a day of statistics of many queues takes.

`python -m benchmarks.statistics_memory` prints the table that is stored under `benchmarks/results/`. At 500 messages a
second the samples of no level fit into 16 bits: queues take the most memory that they can.
"""

from __future__ import annotations

import argparse
import gc
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from warren.broker.management.statistics.collector import LENGTHS, QUEUE_COUNTERS
from warren.broker.management.statistics.series import COMPACT, TICK, Series

DAY: int = round(24 * 3600 / TICK)
"""Ticks of a day."""
BOUND: int = 100_000_000
"""Bytes that the samples of 10,000 queues may take."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.statistics_memory", description=__doc__)
    parser.add_argument("--queues", type=int, default=10_000)
    parser.add_argument(
        "--rates", default="10,50,500", help="messages a second and queue (default: %(default)s)"
    )
    options = parser.parse_args()
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()
    print(f"{datetime.now(UTC):%Y-%m-%d}, commit {commit}, Python {sys.version.split()[0]}\n")
    print("| Messages a second and queue | Queues | Memory | each | One sample |")
    print("|---|---|---|---|---|")
    highest = 0
    for rate in map(int, options.rates.split(",")):
        before = resident_bytes()
        kept, seconds = fill(options.queues, rate)
        taken = resident_bytes() - before
        highest = max(highest, taken)
        each = taken / options.queues
        print(
            f"| {rate} | {len(kept):,} | {taken / 1e6:.0f} MB | {each / 1000:.1f} kB | {seconds * 1e6:.0f} µs |",
            flush=True,
        )
        del kept
        gc.collect()
    return 0 if highest < BOUND * options.queues / 10_000 else 1


def fill(queues: int, rate: int) -> tuple[list[Series], float]:
    """Return the samples of a day of queues that are never at rest, and the seconds that one sample took.

    :param rate: messages that each queue takes and gives in a second, on average.
    """
    chance = random.Random(7)
    kept = [Series(len(LENGTHS), len(QUEUE_COUNTERS), COMPACT) for _ in range(queues)]
    last = taken = 0
    spent = 0.0
    for tick in ticks():
        passed = (tick - last) * TICK
        for series in kept:
            ready, unacked = chance.randrange(60_000), chance.randrange(5_000)
            counters = [
                before + round(passed * rate * chance.uniform(0.5, 1.5))
                for before in series.values[len(LENGTHS) :]
            ]
            values = [ready + unacked, ready, unacked, *counters]
            began = time.perf_counter()
            series.record(tick, values)
            spent += time.perf_counter() - began
        taken += queues
        last = tick
    return kept, spent / taken


def ticks() -> Iterator[int]:
    """Yield a tick of every ten minutes of a day. The memory of a level is taken with its first sample."""
    yield from range(1, DAY + 1, 120)


def resident_bytes() -> int:
    """Return the memory of this process that is resident."""
    gc.collect()
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


if __name__ == "__main__":
    sys.exit(main())
