"""Broker process whose machine's clock jumps forward and back by hours while it runs and between its lives."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from random import Random

from tests.faults.chaos.killed_broker import KilledBroker
from tests.faults.chaos.shifted_clock import set_offset
from tests.support.broker_process import BrokerProcess

HOURS = 3


class ShiftedBroker(BrokerProcess):
    """A broker process that reads the machine's clock with the offset in a file next to its data folder."""

    @property
    def offset_file(self) -> Path:
        return self.data_dir.with_name("clock")

    def command(self) -> list[str | Path]:
        words = super().command()
        module = "tests.faults.chaos.shifted_clock"
        return [sys.executable, "-m", module, self.offset_file, *words[words.index("broker") :]]


class JumpingClockBroker(KilledBroker):
    """A broker process whose clock jumps several times in each round."""

    def __init__(self, data_dir: Path, random: Random) -> None:
        super().__init__(data_dir, random)
        self.jumps = 0
        self._shifted = ShiftedBroker(data_dir)
        self._broker = self._shifted
        set_offset(self._shifted.offset_file, 0.0)

    async def until(self) -> None:
        for _ in range(self._random.randint(1, 4)):
            await asyncio.sleep(self._random.uniform(0.05, self._longest / 2))
            set_offset(self._shifted.offset_file, self._random.uniform(-HOURS, HOURS) * 3600)
            self.jumps += 1
        await asyncio.sleep(self._random.uniform(0, 0.5))

    def figures(self) -> str:
        return f"{super().figures()}, {self.jumps} jumps of the clock"
