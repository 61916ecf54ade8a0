"""What every contender is asked to do, and what it reports: one process, one row, one JSON line."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

WINDOW = 500
CALLS = 100


@dataclass(frozen=True)
class Task:
    """One measurement: the broker, the queue of its own (durable, classic, empty), and how long to send."""

    url: str
    queue: str
    seconds: float


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


class Handled:
    """Counts what handlers have seen, and waits for the last one."""

    def __init__(self) -> None:
        self.count = 0

    async def reaches(self, total: int) -> None:
        async with asyncio.timeout(60):
            while self.count < total:  # noqa: ASYNC110 - an event a message would be measured too
                await asyncio.sleep(0.001)


def main(rows: dict[str, Row]) -> None:
    """`python -m benchmarks.sdk.CONTENDER ROW URL QUEUE SECONDS`: messages, seconds, processor seconds as JSON."""
    name, url, queue, seconds = sys.argv[1:]

    async def measured() -> dict[str, float]:
        started, spent = time.perf_counter(), _processor()
        messages = await rows[name](Task(url, queue, float(seconds)))
        return {
            "messages": messages,
            "seconds": time.perf_counter() - started,
            "processor": _processor() - spent,
        }

    print(json.dumps(asyncio.run(measured())))


def _processor() -> float:
    times = os.times()
    return times.user + times.system
