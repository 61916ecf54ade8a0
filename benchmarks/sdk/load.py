"""Common part of all compared clients: one process measures one load and prints one JSON line."""

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
"""Threads of a client that blocks; more threads make none of them faster on two cores."""


@dataclass
class Task:
    """One measurement: the broker, a durable, classic, empty queue, and the duration of sending."""

    url: str
    queue: str
    seconds: float
    process: int | None = None
    """Process that works for this one and lives as long; its processor time counts too."""
    with_children: bool = False
    """The processor time of the children of `process` counts too."""
    started: float = 0.0
    spent: float = 0.0

    def begin(self) -> None:
        """Start measuring; everything before was preparation."""
        self.started, self.spent = time.perf_counter(), self._processor()

    def measured(self, messages: int) -> dict[str, float]:
        return {
            "messages": messages,
            "seconds": time.perf_counter() - self.started,
            "processor": self._processor() - self.spent,
        }

    def repeat(self, once: Callable[[], int]) -> int:
        """Repeat an operation until the time is over; return the sum of its counts."""
        end = time.monotonic() + self.seconds
        done = 0
        while time.monotonic() < end:
            done += once()
        return done

    def _processor(self) -> float:
        times = os.times()
        spent = times.user + times.system
        if self.process is not None:
            processes = [str(self.process)]
            if self.with_children:
                children = Path(f"/proc/{self.process}/task/{self.process}/children")
                processes += children.read_text().split()
            for process in processes:
                fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
                spent += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return spent


Workload = Callable[[Task], Awaitable[int]]


async def in_parallel(width: int, seconds: float, once: Callable[[], Awaitable[object]]) -> int:
    """Repeat an operation in `width` tasks until the time is over; return the number of repetitions."""
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
    """Repeat a blocking operation in threads until the time is over; return the number of repetitions."""
    end = time.monotonic() + seconds

    def worker() -> int:
        done = 0
        while time.monotonic() < end:
            once()
            done += 1
        return done

    return sum(await asyncio.gather(*(asyncio.to_thread(worker) for _ in range(THREADS))))


class Handled:
    """Counter of handled messages."""

    def __init__(self) -> None:
        self.count = 0
        self._lock = threading.Lock()

    def one(self) -> None:
        """Count one message from a handler in a thread."""
        with self._lock:
            self.count += 1

    async def reaches(self, total: int) -> None:
        async with asyncio.timeout(60):
            while self.count < total:  # noqa: ASYNC110 - an event a message would be measured too
                await asyncio.sleep(0.001)


def main(rows: dict[str, Workload]) -> None:
    """Run `python -m benchmarks.sdk.CLIENT LOAD URL QUEUE SECONDS`: print messages, seconds and processor
    seconds as JSON.
    """
    name, url, queue, seconds = sys.argv[1:]

    async def measured() -> dict[str, float]:
        task = Task(url, queue, float(seconds))
        task.begin()
        return task.measured(await rows[name](task))

    print(json.dumps(asyncio.run(measured())))
