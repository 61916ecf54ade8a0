"""One run of a log on a simulated disk, with its own event loop and a gate that the test controls."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection
from typing import ClassVar

from tests.unit.store.simulated_disk import Disk
from warren.broker.store.data_folder import VERSION
from warren.broker.store.errors import StoreError
from warren.broker.store.index.index_format import Describe, describe_opaque
from warren.broker.store.log.group_commit import Sync
from warren.broker.store.log.log import Log
from warren.broker.store.log.queue_log import QueueLog
from warren.broker.store.log.recovery import Recovery, recover
from warren.broker.store.stream.stream_recovery import StreamRecovery, recover_streams

BLOCK = 256


class ManualGate:
    """A gate whose changes are committed when the test calls `commit`."""

    def __init__(self) -> None:
        self.submitted = 0
        self.last_is_addition = True
        self.committed = 0
        self._watchers: list[Callable[[], None]] = []

    @property
    def last_addition(self) -> int:
        return self.submitted if self.last_is_addition else 0

    def watch(self, callback: Callable[[], None]) -> None:
        self._watchers.append(callback)

    def on_log_written(self, batch: int) -> None:
        pass

    def commit(self) -> None:
        self.committed = self.submitted
        for callback in self._watchers:
            callback()


class LogRun:
    """One run of the log on a disk, from recovery to its end."""

    running: ClassVar[list[LogRun]] = []
    """The runs that have not ended."""

    def __init__(
        self,
        disk: Disk,
        known: Collection[int] = (1,),
        *,
        block: int = BLOCK,
        segment_size: int = 4096,
        slack: int = 8192,
        batch_size: int = 1 << 20,
        ack_delay: float = 0.001,
        describe: Describe = describe_opaque,
        sync: Sync = Sync.BATCH,
        preallocate: int = 100,
        stored_version: int = VERSION,
    ) -> None:
        self.disk = disk
        self.gate = ManualGate()
        folder = disk.folder(stored_version)
        self.recovery: Recovery = recover(folder, known, block=block, describe=describe)
        self.found: StreamRecovery = recover_streams(
            folder, set(known), self.recovery.clean, self.recovery.manifest
        )
        self.recovery.finish()
        self.loop = asyncio.new_event_loop()
        self.log = Log(
            self.recovery,
            self.loop,
            self.gate,
            segment_size=segment_size,
            slack=slack,
            batch_size=batch_size,
            ack_delay=ack_delay,
            retry=0.001,
            sync=sync,
            preallocate=preallocate,
        )
        LogRun.running.append(self)
        self.synced: list[int] = []
        self.full: list[bool] = []
        self.failures: list[str] = []
        self.log.on_synced = self.synced.append
        self.log.on_full = self.full.append
        self.log.on_failed = self.failures.append

    @property
    def written(self) -> int:
        """Bytes of the current segment that are written."""
        return int(self.log.written_position) & 0xFFFF_FFFF

    def queue(self, incarnation: int = 1) -> QueueLog:
        return self.log.queue(incarnation)

    def messages(self, incarnation: int = 1) -> dict[int, bytes]:
        """Return the recovered messages of a queue by sequence."""
        return {number: payload for number, payload, _ in self.recovery.queues[incarnation].messages}

    def run_until(self, condition: Callable[[], bool], seconds: float = 60.0) -> None:
        """Run the loop until the condition holds."""

        async def wait() -> None:
            until = time.monotonic() + seconds
            while not condition():
                assert time.monotonic() < until, (
                    f"the condition never held: {vars(self.log) if hasattr(self.log, '__dict__') else self.log}"
                )
                await asyncio.sleep(0)

        self.loop.run_until_complete(wait())

    def sync(self) -> None:
        """Run until everything appended so far is on disk."""
        batch = self.log.batch
        self.run_until(lambda: self.log.synced >= batch)

    def sync_all(self) -> None:
        """Run until nothing is left to write, acknowledgements included."""
        self.run_until(lambda: self.log.is_synced)

    def step(self) -> None:
        """Run one turn of the loop."""
        self.loop.run_until_complete(asyncio.sleep(0))

    def close(self) -> Disk:
        """Stop cleanly; return the disk for the next run."""
        self.loop.run_until_complete(self.log.close())
        self.loop.close()
        LogRun.running.remove(self)
        return self.disk.kill()

    def kill_synced(self) -> Disk:
        """Kill the process once everything appended is on disk; return the disk for the next run."""
        self.sync_all()
        return self.kill()

    def end(self) -> None:
        """End the run after its disk was killed."""
        with contextlib.suppress(StoreError):
            self.loop.run_until_complete(self.log.close())
        self.loop.close()
        LogRun.running.remove(self)

    def kill(self) -> Disk:
        """Kill the process; return the disk for the next run."""
        after = self.disk.kill()
        self.end()
        return after


__all__ = ["BLOCK", "LogRun", "ManualGate"]
