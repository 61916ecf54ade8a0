"""Measurements for soak tests: queue lengths, and processor time of processes."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from tests.support.operator_cli import Operator, warren_ctl


async def left(data_dir: Path, queue: str, *, at_most: int, seconds: float) -> None:
    """Wait until the queue has at most this number of messages, unacknowledged ones included.

    :raises TimeoutError: if it takes longer than `seconds`
    """
    operator = Operator(warren_ctl(data_dir), "", is_warren=True)
    async with asyncio.timeout(seconds):
        while operator.queue(queue, "messages")["messages"] > at_most:  # noqa: ASYNC110 - it is asked elsewhere
            await asyncio.sleep(0.05)


async def all_empty(data_dir: Path, prefix: str, *, seconds: float) -> None:
    """Wait until all queues whose names begin with the prefix are empty, without unacknowledged messages.

    :raises TimeoutError: if it takes longer than `seconds`
    """
    operator = Operator(warren_ctl(data_dir), "", is_warren=True)

    def empty() -> bool:
        rows = operator.table("list_queues", "name", "messages")
        return not any(row["messages"] for row in rows if row["name"].startswith(prefix))

    async with asyncio.timeout(seconds):
        while not empty():  # noqa: ASYNC110 - it is asked elsewhere
            await asyncio.sleep(0.05)


def processor_seconds(pid: int) -> float:
    """Return a process's user and system time so far (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
