"""Soak test of a streaming job from a classic queue through a spool to Parquet.

500,000 messages with ids arrive while its driver and its executors are killed 20 times each; the output has each
message once, in order, and the queue is empty.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

from tests.faults.soak.spark.once import once


def soak(share: float, random: Random, folder: Path) -> list[str]:
    def options(queues: list[str]) -> dict[str, str]:
        (queue,) = queues
        return {"queue": queue, "spoolDir": str(folder / "spool")}

    return once(share, random, folder, "classic", 1, options)
