"""Broker in this process on a simulated disk with power cuts, failures and full disks."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from unittest import mock

from tests.faults.chaos.compactions import Compactions
from tests.faults.chaos.database_faults import Content, DatabasePower, content, put
from tests.faults.chaos.failures import ChaosFailure
from tests.faults.chaos.history import EventType
from tests.faults.chaos.load_clients import FULL_VOLUME, LOW_VOLUME
from tests.faults.chaos.power_cuts import CutPoint, PowerCuts
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
TINY_SEGMENTS = (*[16_384] * 3, *[32_768] * 3, 100_000)
"""Sizes of segments in rounds of power cuts, below and above that of a block: many are compacted within seconds."""
MIN_COMPACTIONS = 20
"""Compacted segments in each life before the power may fail. What a cut leaves of a compaction is what is tested."""
COMPACTION_SECONDS = 300.0
"""Time within which a life must have compacted so many segments, or the run fails."""


class PowerDisk(Disk):
    """A simulated disk whose power fails before a change that `cuts` chooses."""

    def __init__(self, disk: Disk, random: Random) -> None:
        super().__init__()
        self.files, self._durable = disk.files, disk._durable
        self.random = random
        self.cuts = PowerCuts()
        self.after: Disk | None = None
        """The disk for the next life, once the power is cut."""
        self.cut_at = 0.0

    def cut(self) -> None:
        """Cut the power now."""
        if self.after is None:
            self.cut_at = time.monotonic()
            self.after = self.cut_power(self.random)

    def _change(self, call: str, path: str) -> None:
        if self.cuts.is_due(call, path):
            self.on_call()

    def on_call(self) -> None:
        self.cut()

    def save(self) -> None:
        """Write its files to the real file system."""
        for name, file in self.files.items():
            path = Path(name)
            path.parent.mkdir(exist_ok=True, parents=True)
            path.write_bytes(file.content)

    def open(self, path: str) -> int:
        self._change("open", path)
        return super().open(path)

    def write(self, handle: int, data: bytes, offset: int) -> None:
        self._change("write", self._handles[handle])
        super().write(handle, data, offset)

    def truncate(self, handle: int, size: int) -> None:
        self._change("truncate", self._handles[handle])
        super().truncate(handle, size)

    def sync(self, handle: int) -> None:
        time.sleep(self.random.uniform(0, SYNC))
        self._change("sync", self._handles[handle])
        super().sync(handle)

    def unlink(self, path: str) -> None:
        self._change("unlink", path)
        super().unlink(path)

    def rename(self, path: str, target: str) -> None:
        self._change("rename", target)
        super().rename(path, target)

    def sync_folder(self, folder: str) -> None:
        self._change("sync_folder", folder)
        super().sync_folder(folder)


DISK_FAULTS = ("power", "fail", "full", "frozen")


class FaultyDiskBroker:
    """A broker on this event loop whose disk has faults; each of its lives ends with a power cut.

    :param fault: `power` cuts the power at some change of the disk, or within a commit of the definitions, after
        `MIN_COMPACTIONS` compactions; `fail` lets all changes fail from some such moment on and cuts the power a little
        later; `full` fills the disk for short times; `frozen` lets its syncs block for short times, the last of which may
        end with the power cut.
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
        self.volume = LOW_VOLUME if fault == "power" else FULL_VOLUME
        self.fault_happened = threading.Event()
        self.faults_injected = 0
        """Number of times that the disk failed or was full."""
        self.compactions: list[int] = []
        """Segments that each life has compacted."""
        self.cut_points: Counter[str] = Counter()
        """Number of power cuts by the kind of change that they came before."""
        self._fault_type = fault
        self._config = config or BrokerConfig(memory_limit=MIN_MEMORY_LIMIT)
        self._clock = clock
        self._faulted_at = 0.0
        self._path = folder / "data"
        self._disk: PowerDisk = PowerDisk(Disk(), random)
        self._database_power = DatabasePower(random)
        self._compactions = Compactions()
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
            self._disk.cuts = PowerCuts(CutPoint.ANY, self.random.randint(1, 8))
            with contextlib.suppress(StoreError):
                await self._start()
            await self.end()
        await self._start()

    async def _start(self) -> None:
        self.fault_happened.clear()
        self._compactions = Compactions(frequent=self._fault_type == "power")
        with (
            mock.patch("warren.broker.broker.Log", self._log()),
            self._compactions.counted(),
            mock.patch("warren.broker.store.definitions.definitions_database._RETRY", RETRY),
            self._database_power(),
        ):
            config = replace(self._config, data_dir=self._path)
            self._broker = Broker(config, files=self._disk, clock=self._clock)
            await self._broker.start()

    def _log(self) -> Callable[..., Log]:
        if self._fault_type != "power":
            return SMALL_LOG
        size = self.random.choice(TINY_SEGMENTS)
        return functools.partial(SMALL_LOG, segment_size=size, slack=size)

    async def until(self) -> None:
        """Return after the fault, at the latest 3 s after the load was long enough for it."""
        self._faulted_at = 0.0
        if self._fault_type == "power":
            await self._until_compacted()
        if self._fault_type == "full":
            await self._fill()
            return
        if self._fault_type == "frozen":
            await self._freeze()
            return
        self.arm()
        await asyncio.to_thread(self.fault_happened.wait, 3)
        self.compactions.append(self._compactions.count)
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
        power = self._fault_type == "power"
        point = CutPoint.draw(self.random) if power else self.random.choice((CutPoint.ANY, CutPoint.COMMIT))
        self.cut_points[point.value] += power
        if point is CutPoint.COMMIT:
            self._database_power.commits_left = self.random.randint(1, 60)
        else:
            compactions = self._compactions
            self._disk.cuts = PowerCuts(
                point, self.random.randint(1, point.changes), lambda: compactions.running
            )

    async def _until_compacted(self) -> None:
        until = time.monotonic() + COMPACTION_SECONDS
        # Those of the start do not count: the load was not running yet.
        self._compactions.count = 0
        while self._compactions.count < MIN_COMPACTIONS:
            if time.monotonic() > until:
                raise ChaosFailure(
                    f"{self._compactions.count} compactions in {COMPACTION_SECONDS:.0f} s of load, "
                    f"fewer than {MIN_COMPACTIONS}: the round proves nothing"
                )
            await asyncio.sleep(0.01)

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

    async def _freeze(self) -> None:
        for _ in range(self.random.randint(1, 4)):
            await asyncio.sleep(self.random.uniform(0.1, 0.6))
            self.faults_injected += 1
            # The time up to which acknowledgements are certainly on the disk.
            self._faulted_at = time.monotonic()
            self._disk.syncs_allowed.clear()
            await asyncio.sleep(self.random.uniform(0.1, 1.5))
            if self.random.random() < 0.3:
                return
            self._disk.syncs_allowed.set()
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

    def figures(self) -> str:
        """Return what the rounds reached, for the report."""
        if self._fault_type != "power":
            return f"{self.faults_injected} faults"
        cuts = ", ".join(f"{count} {name}" for name, count in sorted(self.cut_points.items()))
        return f"{sum(self.compactions)} compactions, at least {min(self.compactions)} in each round; cuts at: {cuts}"

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
