"""Broker in this process on a simulated disk with power cuts, failures and full disks."""

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

from tests.faults.chaos.database_faults import Content, DatabasePower, content, put
from tests.faults.chaos.history import EventType
from tests.unit.store.simulated_disk import Disk
from warren.broker import Broker, BrokerConfig, VirtualClock
from warren.broker.process_memory import MIN_MEMORY_LIMIT
from warren.broker.store.data_folder import DataFolder
from warren.broker.store.errors import StoreError
from warren.broker.store.log.log import Log

SYNC = 0.003
"""Greatest duration of a sync in seconds. A cut can take away what the next batch collects meanwhile."""

RETRY = 0.02
"""Seconds between attempts to write to a full disk."""
SMALL_LOG = functools.partial(Log, segment_size=300_000, slack=900_000, retry=RETRY)
"""A log with small segments, which fill and are compacted within a life."""


class PowerDisk(Disk):
    """A simulated disk whose power fails before the `calls`-th change from now, if that is positive."""

    def __init__(self, disk: Disk, random: Random) -> None:
        super().__init__()
        self.files, self._durable = disk.files, disk._durable
        self.random = random
        self.calls = -1
        self.after: Disk | None = None
        """The disk for the next life, once the power is cut."""
        self.cut_at = 0.0

    def cut(self) -> None:
        """Cut the power now."""
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
        """Write its files to the real file system."""
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

    def rename(self, path: str, target: str) -> None:
        self._count()
        super().rename(path, target)

    def sync_folder(self, folder: str) -> None:
        self._count()
        super().sync_folder(folder)


DISK_FAULTS = ("power", "fail", "full")


class FaultyDiskBroker:
    """A broker on this event loop whose disk has faults; each of its lives ends with a power cut.

    :param fault: `power` cuts the power at some change of the disk, or within a commit of the definitions; `fail` lets all
        changes fail from some such moment on and cuts the power a little later; `full` fills the disk for short times.
    :param config: its configuration, without the data folder; by default one with little memory.
    :param clock: its clock; by default that of the machine.
    """

    def __init__(
        self,
        folder: Path,
        random: Random,
        fault: str,
        *,
        config: BrokerConfig | None = None,
        clock: VirtualClock | None = None,
    ) -> None:
        self.random = random
        self.fault_happened = threading.Event()
        self.faults_injected = 0
        """Number of times that the disk failed or was full."""
        self._fault_type = fault
        self._config = config or BrokerConfig(memory_limit=MIN_MEMORY_LIMIT)
        self._clock = clock
        self._faulted_at = 0.0
        self._path = folder / "data"
        self._disk: PowerDisk = PowerDisk(Disk(), random)
        self._database_power = DatabasePower(random)
        self._broker: Broker | None = None
        DataFolder.open(self._path).close()

    @property
    def url(self) -> str:
        assert self._broker is not None
        return self._broker.url

    async def start(self) -> None:
        """Start the broker; with `power`, sometimes cut the power during the start first."""
        while self._fault_type == "power" and self.random.random() < 0.2:
            self._disk.on_call = self._cut  # type: ignore[method-assign]
            self._disk.calls = self.random.randint(1, 8)
            with contextlib.suppress(StoreError):
                await self._start()
            await self.end()
        await self._start()

    async def _start(self) -> None:
        self.fault_happened.clear()
        with (
            mock.patch("warren.broker.broker.Log", SMALL_LOG),
            mock.patch("warren.broker.store.definitions.definitions_database._RETRY", RETRY),
            self._database_power(),
        ):
            config = replace(self._config, data_dir=self._path)
            self._broker = Broker(config, files=self._disk, clock=self._clock)
            await self._broker.start()

    async def until(self) -> None:
        """Return after the fault, at the latest after 3 s."""
        self._faulted_at = 0.0
        if self._fault_type == "full":
            await self._fill()
            return
        self.arm()
        await asyncio.to_thread(self.fault_happened.wait, 3)
        if self._fault_type == "fail":
            if not self.fault_happened.is_set():
                self._break()
            # A broker that confirms too much after the failure does it now.
            await asyncio.sleep(self.random.uniform(0, 0.3))

    def arm(self) -> None:
        """Inject the fault at some later call; `fault_happened` is set then."""
        self._disk.on_call = self._database_power.on_cut = (  # type: ignore[method-assign]
            self._cut if self._fault_type == "power" else self._break
        )
        if self.random.random() < 0.3:
            self._database_power.commits_left = self.random.randint(1, 60)
        else:
            self._disk.calls = self.random.randint(1, 1000)

    def _break(self) -> None:
        self._faulted_at = time.monotonic()
        self.faults_injected += 1
        self._disk.fail_writes = self._disk.fail_syncs = True
        self._database_power.off = True
        self.fault_happened.set()

    async def _fill(self) -> None:
        for _ in range(self.random.randint(1, 4)):
            await asyncio.sleep(self.random.uniform(0.1, 0.6))
            self._faulted_at = self._faulted_at or time.monotonic()
            self.faults_injected += 1
            self._disk.free_bytes = self.random.choice((0, 100, 10_000))
            self._database_power.full = self.random.random() < 0.5
            await asyncio.sleep(self.random.uniform(0, 0.4))
            self._disk.free_bytes, self._database_power.full = None, False
        await asyncio.sleep(self.random.uniform(0, 0.6))

    def _cut(self) -> None:
        # No other commit is running: the lock keeps it out until the cut is done.
        with self._database_power.lock:
            if self._disk.after is None:
                self._database_power.off = True
                self._disk.cut()
                self._left: Content = self._database_power.torn or content(self._path)
        self.fault_happened.set()

    async def end(self) -> tuple[EventType, float]:
        self._cut()
        await self._stop()
        put(self._left, self._path)
        # Acknowledgements after the first fault may not have reached the disk.
        at = self._faulted_at or self._disk.cut_at
        assert self._disk.after is not None
        self._disk = PowerDisk(self._disk.after, self.random)
        self._database_power = DatabasePower(self.random)
        return EventType.KILLED, at

    async def close(self) -> None:
        """Stop the broker and write the disk's content to the data folder, so that a broker can open it."""
        await self._stop()
        self._disk.save()

    async def _stop(self) -> None:
        """Stop the broker, whatever its state."""
        broker, self._broker = self._broker, None
        if broker is not None:
            with contextlib.suppress(StoreError):
                await broker.stop()
