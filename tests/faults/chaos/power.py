"""A whole broker on a disk whose power fails: what was not synced is gone, torn, or there in part and in any order."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
import time
from dataclasses import replace
from pathlib import Path
from random import Random
from unittest import mock

from tests.faults.chaos.definitions import Content, Mains, content, put
from tests.faults.chaos.history import What
from tests.unit.store.simulated_disk import Disk
from warren.broker import Broker, BrokerConfig, VirtualClock
from warren.broker.process_memory import MIN_MEMORY_LIMIT
from warren.broker.store.data_folder import DataFolder
from warren.broker.store.errors import StoreError
from warren.broker.store.log.log import Log

SYNC = 0.003
"""Seconds that a sync takes at most: what the next batch collects meanwhile is what a cut can take away."""

RETRY = 0.02
"""Seconds between attempts to write to a full disk."""
SMALL_LOG = functools.partial(Log, segment_size=300_000, slack=900_000, retry=RETRY)
"""So that segments end and are compacted within a life."""


class PowerDisk(Disk):
    """A disk in memory whose power fails before the `calls`-th change from now, if that is positive."""

    def __init__(self, disk: Disk, random: Random) -> None:
        super().__init__()
        self.files, self._durable = disk.files, disk._durable
        self.random = random
        self.calls = -1
        self.after: Disk | None = None
        """What the next life finds."""
        self.cut_at = 0.0

    def cut(self) -> None:
        """Now."""
        if self.after is None:
            self.cut_at = time.monotonic()
            self.after = self.cut_power(self.random)

    def _count(self) -> None:
        self.calls -= 1
        if self.calls == 0:
            self.on_call()

    def on_call(self) -> None:
        self.cut()

    def save(self) -> None:
        """Make real files of what is on it."""
        for name, file in self.files.items():
            path = Path(name)
            path.parent.mkdir(exist_ok=True, parents=True)
            path.write_bytes(file.content)

    def write(self, handle: int, data: bytes, offset: int) -> None:
        self._count()
        super().write(handle, data, offset)

    def truncate(self, handle: int, size: int) -> None:
        self._count()
        super().truncate(handle, size)

    def sync(self, handle: int) -> None:
        time.sleep(self.random.uniform(0, SYNC))
        self._count()
        super().sync(handle)

    def unlink(self, path: str) -> None:
        self._count()
        super().unlink(path)

    def sync_folder(self, folder: str) -> None:
        self._count()
        super().sync_folder(folder)


HARMS = ("power", "fail", "full")


class Powered:
    """A broker of this event loop whose disk comes to harm; each of its lives ends with a power cut.

    :param config: but for the data folder. Default one of little memory
    :param clock: default the machine's
    :param harm: `power`: the power fails at some change of the disk, or within a commit of the definitions. `fail`: from
        some such moment on all fail, and the power a little later. `full`: again and again there is no room for a while
    """

    def __init__(
        self,
        folder: Path,
        random: Random,
        harm: str,
        *,
        config: BrokerConfig | None = None,
        clock: VirtualClock | None = None,
    ) -> None:
        self.random = random
        self.cuts = threading.Event()
        self.harms = 0
        """How often the disk failed or was full."""
        self._harm = harm
        self._config = config or BrokerConfig(memory_limit=MIN_MEMORY_LIMIT)
        self._clock = clock
        self._harmed_at = 0.0
        self._path = folder / "data"
        self._disk: PowerDisk = PowerDisk(Disk(), random)
        self._mains = Mains(random)
        self._broker: Broker | None = None
        DataFolder.open(self._path).close()

    @property
    def url(self) -> str:
        assert self._broker is not None
        return self._broker.url

    async def start(self) -> None:
        """Now and then the power fails meanwhile."""
        while self._harm == "power" and self.random.random() < 0.2:
            self._disk.on_call = self._cut  # type: ignore[method-assign]
            self._disk.calls = self.random.randint(1, 8)
            with contextlib.suppress(StoreError):
                await self._start()
            await self.end()
        await self._start()

    async def _start(self) -> None:
        self.cuts.clear()
        with (
            mock.patch("warren.broker.broker.Log", SMALL_LOG),
            mock.patch("warren.broker.store.definitions.definitions_database._RETRY", RETRY),
            self._mains(),
        ):
            config = replace(self._config, data_dir=self._path)
            self._broker = Broker(config, files=self._disk, clock=self._clock)
            await self._broker.start()

    async def until(self) -> None:
        """It happens at some call, after 3 s in any case."""
        self._harmed_at = 0.0
        if self._harm == "full":
            await self._fill()
            return
        self.arm()
        await asyncio.to_thread(self.cuts.wait, 3)
        if self._harm == "fail":
            if not self.cuts.is_set():
                self._break()
            # A broker that said or did too much would do it now.
            await asyncio.sleep(self.random.uniform(0, 0.3))

    def arm(self) -> None:
        """It shall happen at some call from now on; `cuts` is set then."""
        self._disk.on_call = self._mains.on_cut = (  # type: ignore[method-assign]
            self._cut if self._harm == "power" else self._break
        )
        if self.random.random() < 0.3:
            self._mains.commits_left = self.random.randint(1, 60)
        else:
            self._disk.calls = self.random.randint(1, 1000)

    def _break(self) -> None:
        self._harmed_at = time.monotonic()
        self.harms += 1
        self._disk.fail_writes = self._disk.fail_syncs = True
        self._mains.off = True
        self.cuts.set()

    async def _fill(self) -> None:
        for _ in range(self.random.randint(1, 4)):
            await asyncio.sleep(self.random.uniform(0.1, 0.6))
            self._harmed_at = self._harmed_at or time.monotonic()
            self.harms += 1
            self._disk.free_bytes = self.random.choice((0, 100, 10_000))
            self._mains.full = self.random.random() < 0.5
            await asyncio.sleep(self.random.uniform(0, 0.4))
            self._disk.free_bytes, self._mains.full = None, False
        await asyncio.sleep(self.random.uniform(0, 0.6))

    def _cut(self) -> None:
        # No commit is on its way: either it is the one that is cut, or the lock keeps it out until all is over.
        with self._mains.lock:
            if self._disk.after is None:
                self._mains.off = True
                self._disk.cut()
                self._left: Content = self._mains.torn or content(self._path)
        self.cuts.set()

    async def end(self) -> tuple[What, float]:
        self._cut()
        await self._stop()
        put(self._left, self._path)
        # What was acknowledged from then on had to wait.
        at = self._harmed_at or self._disk.cut_at
        assert self._disk.after is not None
        self._disk = PowerDisk(self._disk.after, self.random)
        self._mains = Mains(self.random)
        return What.KILLED, at

    async def close(self) -> None:
        """What is on the disk is put into the data folder, which a broker can open then."""
        await self._stop()
        self._disk.save()

    async def _stop(self) -> None:
        """Let what is left of the process find its end."""
        broker, self._broker = self._broker, None
        if broker is not None:
            with contextlib.suppress(StoreError):
                await broker.stop()
