"""Group commit: many records are written and synced as one batch, one batch at a time.

While the writer thread writes one batch, new records are collected in the next one. A written batch is released, which
sends its publisher confirms, once the definitions database has committed all changes that were submitted before the
batch. Batches are released in order.
"""

from __future__ import annotations

import asyncio
import enum
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from warren.broker.store.log.writer_jobs import Batch, JobQueue
from warren.broker.store.log.writer_watch import WriterWatch


class Sync(enum.Enum):
    """Policy of syncing the log. A publisher confirm waits for the sync that covers its message, except with OFF."""

    BATCH = "batch"
    """Sync once for each batch. Acknowledgements wait up to `ack_delay` for a message to be written in the same
    batch."""
    ALWAYS = "always"
    """Like BATCH, but acknowledgements are written at once."""
    OFF = "off"
    """Never sync: confirmed messages survive a killed process, but not a power cut."""


class Gate(Protocol):
    """Interface of the definitions database for the log, whose publisher confirms wait for the database's commits.

    A batch of messages is confirmed only when all queues and exchanges that were added to that database before it are on
    disk: otherwise a confirmed message could lose its queue in a crash. It does not wait for other changes: a deletion of
    thousands of bindings takes a while.
    """

    @property
    def submitted(self) -> int:
        """Number of the last change that was submitted to the definitions database."""

    @property
    def last_addition(self) -> int:
        """Number of the last submitted change that has added a queue or an exchange; 0 before the first."""

    @property
    def committed(self) -> int:
        """Number of the last change of the definitions database that is on disk."""

    def watch(self, callback: Callable[[], None]) -> None:
        """Call `callback` on the event loop whenever `committed` has grown."""

    def on_log_written(self, batch: int) -> None:
        """Commit the changes that wait for a batch of the log, because this batch and all before it are on disk."""


class GroupCommit:
    """Queue of batches of records: passes them to the writer thread and releases them when they are durable.

    The release of a batch sends its publisher confirms.

    :param gate: the definitions database: queues added there before a batch must be on disk before its release.
        None without such a database.
    :param close_batch: closes the current batch and passes it to `add`, if it holds anything.
    :param on_released: called for each released batch, in order.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        jobs: JobQueue,
        gate: Gate | None,
        close_batch: Callable[[], None],
        on_released: Callable[[Batch], None],
    ) -> None:
        self.idle = True
        """True if no batch is being written and no write is scheduled."""
        self.is_scheduled = False
        """True while the next batch is to be written in this iteration of the event loop, or the next one."""
        self._halted = False
        self._loop = loop
        self._jobs = jobs
        self._gate = gate
        self._close_batch = close_batch
        self._on_released = on_released
        self._in_flight: Batch | None = None
        self._ready: deque[Batch] = deque()
        self._written: deque[Batch] = deque()
        self._watch = WriterWatch(loop, self.batch_in_flight)

    def batch_in_flight(self) -> Batch | None:
        """Return the batch that the writer thread writes, or None."""
        return self._in_flight

    @property
    def is_writing(self) -> bool:
        """True while the writer thread writes a batch."""
        return self._in_flight is not None

    @property
    def has_closed_batches(self) -> bool:
        """True if closed batches wait for the writer thread."""
        return bool(self._ready)

    def submitted_change(self) -> int:
        """Return the number of the last change submitted to the definitions database; 0 without such a database."""
        return self._gate.submitted if self._gate is not None else 0

    def last_addition(self) -> int:
        """Return the number of the last change that has added a queue or an exchange to the definitions; 0 without one."""
        return self._gate.last_addition if self._gate is not None else 0

    def committed_change(self) -> int:
        """Return the number of the last change that the definitions database has committed; 0 without one."""
        return self._gate.committed if self._gate is not None else 0

    def schedule(self) -> None:
        """Schedule the write of the current batch for the next iteration of the event loop.

        All records that are appended until then belong to this batch. The loop may call `write_scheduled` earlier.
        """
        self.idle = False
        self.is_scheduled = True
        self._loop.call_soon(self.write_scheduled)

    def write_scheduled(self) -> None:
        """Hand the current batch to the writer thread, if that is scheduled."""
        if self.is_scheduled:
            self.write_next()

    def write_next(self) -> None:
        """Hand the next batch to the writer thread, unless the thread is still writing one."""
        self.idle = False
        self.is_scheduled = False
        if self._in_flight is not None or self._halted:
            return
        if not self._ready:
            self._close_batch()
        if self._ready:
            self._in_flight = self._ready.popleft()
            self._in_flight.submitted_at = time.monotonic()
            self._jobs.put(self._in_flight)
            if not self._watch.is_watching:
                self._watch.start()
        else:
            self.idle = True

    def add(self, batch: Batch) -> None:
        """Append a closed batch to those that wait for the writer thread."""
        self._ready.append(batch)

    def written(self, batch: Batch) -> None:
        """Handle a batch that the writer thread has written: pass all batches that are durable now to `on_released`."""
        self._in_flight = None
        self._watch.on_written(batch)
        self._written.append(batch)
        if self._gate is not None:
            self._gate.on_log_written(int(batch.number))
        self.release()

    def release(self) -> None:
        """Pass the written batches to the callback `on_released`, oldest first.

        Stop at the first that has to wait for a commit of the definitions database.
        """
        while self._written:
            batch = self._written[0]
            if self._gate is not None and batch.change > self._gate.committed:
                break
            self._written.popleft()
            self._on_released(batch)

    def halt(self) -> None:
        """Stop passing batches to the writer thread, because the disk failed."""
        self._halted = True
        self._watch.stop()

    def stop_watch(self) -> None:
        """Stop the watch of the writer thread, which has ended."""
        self._watch.stop()


__all__ = ["Gate", "GroupCommit", "Sync"]
