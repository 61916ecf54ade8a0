"""Soak test of a streaming job from two streams to Parquet.

500,000 messages arrive while its driver and its executors are killed 20 times each; the output has each message once,
in order.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

from tests.faults.soak.spark.once import once


def soak(share: float, random: Random, folder: Path) -> list[str]:
    def options(streams: list[str]) -> dict[str, str]:
        # A batch is several tasks, of which a kill ends one.
        return {"stream": ",".join(streams), "messagesPerTask": "5000"}

    return once(share, random, folder, "stream", 2, options)
