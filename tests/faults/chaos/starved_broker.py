"""Broker process without file descriptors: its limit is lowered under load, and sockets that never speak take the rest."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
from pathlib import Path
from random import Random
from urllib.parse import urlsplit

from tests.faults.chaos.failures import ChaosFailure
from tests.faults.chaos.history import EventType
from tests.faults.chaos.killed_broker import KilledBroker

SOCKETS = 60
"""Most sockets that are opened and never speak."""
EXPECTED = ("event=store.descriptors_short", "event=index.build_failed", "event=log.read_failed")
"""Events that the broker may log at level error because it has no descriptors."""


class StarvedBroker(KilledBroker):
    """A broker process that runs out of descriptors in each round, has to survive that, and is killed afterwards."""

    def __init__(self, data_dir: Path, random: Random) -> None:
        super().__init__(data_dir, random, stops=0.0)
        self.starved = 0
        """Number of times that the broker was left without descriptors."""
        self._sockets: list[socket.socket] = []

    async def until(self) -> None:
        await super().until()
        for _ in range(self._random.randint(1, 3)):
            before = resource.prlimit(self._broker.pid, resource.RLIMIT_NOFILE)
            used = len(os.listdir(f"/proc/{self._broker.pid}/fd"))
            limit = used + self._random.choice((-20, 0, 0, 1, 3, 10))
            resource.prlimit(self._broker.pid, resource.RLIMIT_NOFILE, (limit, before[1]))
            self.starved += 1
            self._open_sockets()
            await asyncio.sleep(self._random.uniform(0.1, 1.5))
            if self._random.random() < 0.7:
                resource.prlimit(self._broker.pid, resource.RLIMIT_NOFILE, before)
                self._close_sockets()
                await asyncio.sleep(self._random.uniform(0, 0.5))

    async def end(self) -> tuple[EventType, float]:
        child = self._broker.child
        assert child is not None
        if not child.running:
            raise ChaosFailure(f"the broker ended without descriptors: {child.errors[-2000:]}")
        self._close_sockets()
        return await super().end()

    def is_expected(self, line: str) -> bool:
        return any(event in line for event in EXPECTED)

    def figures(self) -> str:
        return f"{super().figures()}, without descriptors {self.starved} times"

    def _open_sockets(self) -> None:
        address = urlsplit(self.url)
        for _ in range(self._random.randint(0, SOCKETS)):
            opened = socket.socket()
            opened.setblocking(False)
            # Whether the broker accepts it is its own affair.
            with contextlib.suppress(BlockingIOError):
                opened.connect((address.hostname, address.port))
            self._sockets.append(opened)

    def _close_sockets(self) -> None:
        for opened in self._sockets:
            opened.close()
        self._sockets.clear()
