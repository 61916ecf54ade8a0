"""What every contender is asked to do, and what it reports: one process, one row, one JSON line."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

WINDOW = 500
CALLS = 100
THREADS = 8
"""At work at a time for those that block; more threads make none of them faster on two cores."""


@dataclass
class Task:
    """One measurement: the broker, the queue of its own (durable, classic, empty), and how long to send."""

    url: str
    queue: str
    seconds: float
    process: int | None = None
    """Another process that works for this one, and lives as long; its time counts too."""
    started: float = 0.0
    spent: float = 0.0

    def begin(self) -> None:
        """What has been done so far was preparation, and does not count."""
        self.started, self.spent = time.perf_counter(), self._processor()

    def measured(self, messages: int) -> dict[str, float]:
        return {
            "messages": messages,
            "seconds": time.perf_counter() - self.started,
            "processor": self._processor() - self.spent,
        }

    def repeat(self, once: Callable[[], int]) -> int:
        """Do it until the time is over; the sum of what it counted."""
        end = time.monotonic() + self.seconds
        done = 0
        while time.monotonic() < end:
            done += once()
        return done

    def _processor(self) -> float:
        times = os.times()
        spent = times.user + times.system
        if self.process is not None:
            fields = Path(f"/proc/{self.process}/stat").read_text().rpartition(")")[2].split()
            spent += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return spent


Row = Callable[[Task], Awaitable[int]]


async def in_parallel(width: int, seconds: float, once: Callable[[], Awaitable[object]]) -> int:
    """Do it `width` times at once until the time is over; how often it was done."""
    end = time.monotonic() + seconds
    done = 0

    async def worker() -> None:
        nonlocal done
        while time.monotonic() < end:
            await once()
            done += 1

    await asyncio.gather(*(worker() for _ in range(width)))
    return done


async def in_threads(seconds: float, once: Callable[[], object]) -> int:
    """As `in_parallel`, for what blocks."""
    end = time.monotonic() + seconds

    def worker() -> int:
        done = 0
        while time.monotonic() < end:
            once()
            done += 1
        return done

    return sum(await asyncio.gather(*(asyncio.to_thread(worker) for _ in range(THREADS))))


class Handled:
    """Counts what handlers have seen, and waits for the last one."""

    def __init__(self) -> None:
        self.count = 0
        self._lock = threading.Lock()

    def one(self) -> None:
        """For handlers in threads."""
        with self._lock:
            self.count += 1

    async def reaches(self, total: int) -> None:
        async with asyncio.timeout(60):
            while self.count < total:  # noqa: ASYNC110 - an event a message would be measured too
                await asyncio.sleep(0.001)


def main(rows: dict[str, Row]) -> None:
    """`python -m benchmarks.sdk.CONTENDER ROW URL QUEUE SECONDS`: messages, seconds, processor seconds as JSON."""
    name, url, queue, seconds = sys.argv[1:]

    async def measured() -> dict[str, float]:
        task = Task(url, queue, float(seconds))
        task.begin()
        return task.measured(await rows[name](task))

    print(json.dumps(asyncio.run(measured())))
