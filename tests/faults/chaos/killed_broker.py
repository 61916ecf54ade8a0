"""Broker process that is killed, sometimes during its start, and sometimes stopped cleanly."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from random import Random

from tests.faults.chaos.failures import ChaosFailure
from tests.faults.chaos.history import EventType
from tests.faults.chaos.load_clients import FULL_VOLUME
from tests.support.broker_process import BrokerProcess
from tests.support.processes import Child
from warren.broker.process_memory import MIN_MEMORY_LIMIT
from warren.core.errors import ExitStatus


class KilledBroker:
    """A broker process on a data folder.

    :param longest: greatest number of seconds until the kill.
    :param stops: share of rounds that end with a clean stop instead, between 0 and 1.
    """

    def __init__(self, data_dir: Path, random: Random, *, longest: float = 2.5, stops: float = 0.1) -> None:
        self.volume = FULL_VOLUME
        self.kills = 0
        """Number of broker processes that were killed, those that were still starting included."""
        self.clean_stops = 0
        self._broker: BrokerProcess = BrokerProcess(data_dir)
        self._random = random
        self._longest = longest
        self._stops = stops

    @property
    def url(self) -> str:
        return self._broker.url

    async def start(self) -> None:
        # With the least memory, messages are paged out and read again.
        limit = self._random.choice((str(MIN_MEMORY_LIMIT), "0.4"))
        self._broker.options = ("--log-level", "warning", "--memory-alarm", "false", "--memory-limit", limit)
        while self._random.random() < 0.1:
            with Child(self._broker.command()) as child:
                await asyncio.sleep(self._random.uniform(0.1, 0.4))
                child.kill()
            self.kills += 1
        self._broker.start()

    async def until(self) -> None:
        await asyncio.sleep(self._random.uniform(0.05, self._longest))

    async def end(self) -> tuple[EventType, float]:
        child = self._broker.child
        assert child is not None
        if self._random.random() < self._stops:
            # In a thread: the clients must read the replies of the stopping broker.
            status = await asyncio.to_thread(self._broker.stop)
            if status != ExitStatus.SUCCESS:
                raise ChaosFailure(f"a clean stop ended with {status}: {child.errors[-2000:]}")
            self.clean_stops += 1
            ended = EventType.STOPPED, time.monotonic()
        else:
            at = time.monotonic()
            self._broker.kill()
            self.kills += 1
            ended = EventType.KILLED, at
        for line in child.errors.splitlines():
            if (" ERROR " in line or " CRITICAL " in line) and not self.is_expected(line):
                # With the traceback that may follow.
                found = child.errors[child.errors.index(line) :][:4000]
                raise ChaosFailure(f"the broker logged an error although its disk is intact: {found}")
        return ended

    def is_expected(self, line: str) -> bool:
        """Return whether the faults of this broker cause this line at level error."""
        return False

    def figures(self) -> str:
        return f"{self.kills} kills, {self.clean_stops} clean stops"

    async def close(self) -> None:
        self._broker.stop()
