"""The node's write-ahead log: collects records, commits them in groups, tells when they are on the disk.

Everything here runs on the event loop and awaits nothing but `close`; the disk is worked by one thread
(`Writer`), which has one batch at a time while the next one collects.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Optional, Protocol

from mypy_extensions import i64

from warren.broker.store.errors import StoreError
from warren.broker.store.index.index_builder import IndexJob
from warren.broker.store.index.index_manager import Indexes, forget_moves
from warren.broker.store.log.compaction import Compactor
from warren.broker.store.log.live_segments import Segment, Segments
from warren.broker.store.log.log_tail import SEGMENT_SIZE, Tail
from warren.broker.store.log.queue_log import QueueLog
from warren.broker.store.log.record_format import (
    ACK,
    FAN_OUT,
    GROUP,
    HEADER,
    MARK,
    MESSAGE,
    SPILL,
    entry,
    fan_out_table,
    pairs,
)
from warren.broker.store.log.recovery import Recovery
from warren.broker.store.log.segment_file import AHEAD
from warren.broker.store.log.writer_thread import Batch, Removal, Slice, Stop, Unlink, Writer
from warren.broker.store.read.message_lookup import Lookup
from warren.broker.store.sequence_ranges import NONE
from warren.broker.store.stream.stream_log import StreamLog
from warren.core.errors import ExitStatus

if TYPE_CHECKING:
    from warren.broker.store.stream.stream_store import Streams

logger = logging.getLogger(__name__)

SLACK: Final = 4 * SEGMENT_SIZE
"""Default of how many bytes the log may use beyond twice its live ones."""
BATCH_SIZE: Final = 8 * 1024 * 1024
"""A batch that has grown to this many bytes is closed, so that those who wait for it do not wait for more."""
ACK_DELAY: Final = 0.2
"""Seconds after which acknowledgements are written, if no message takes them along before."""
TRANSIENT_QUEUES: Final = 1 << 62
"""Incarnations from here on are of this process only: the definitions never give them out."""
EARLY: Final = SEGMENT_SIZE // 4
"""A segment that is closed before it is full has so many bytes; smaller ones would be copied together again."""
RETRY: Final = 1.0
"""Seconds between attempts to write to a full disk."""


class Sync(enum.Enum):
    """When the log is synced. A confirm waits for the sync that covers it, in the first two."""

    BATCH = "batch"
    """Once a batch; acknowledgements that no message takes along after `ack_delay`."""
    ALWAYS = "always"
    """As BATCH, and acknowledgements wait for nothing."""
    OFF = "off"
    """Never: what was confirmed survives a killed process and not a power cut."""


class Gate(Protocol):
    """The definitions, as far as confirms wait for them: a batch counts only with the changes that came
    before it."""

    @property
    def submitted(self) -> int: ...

    @property
    def committed(self) -> int: ...

    def watch(self, callback: Callable[[], None]) -> None:
        """Have `callback` called on the loop whenever `committed` has grown."""


class Log:
    """The log of one data folder. Made from what `recover` found; starts its worker thread at once.

    What is appended belongs to batch `batch` and is on the disk once `synced >= batch`. Read `batch` after
    appending: a batch that has become too large is closed before the next record. Sequences of a queue are at
    least 1 and grow.

    :param gate: the definitions that confirms depend on.
    :param segment_size: bytes after which a new segment is begun.
    :param slack: bytes that the log may use beyond twice its live ones, at least a segment.
    :param retry: seconds between attempts to write to a full disk.
    :param ahead: bytes by which a segment's file is made longer at a time, so that syncs are quick.
    """

    def __init__(
        self,
        recovery: Recovery,
        loop: asyncio.AbstractEventLoop,
        gate: Gate | None = None,
        *,
        segment_size: int = SEGMENT_SIZE,
        slack: int = SLACK,
        batch_size: int = BATCH_SIZE,
        ack_delay: float = ACK_DELAY,
        retry: float = RETRY,
        sync: Sync = Sync.BATCH,
        ahead: int = AHEAD,
    ) -> None:
        self.batch: i64 = 1
        self.synced: i64 = 0
        self.unwritten: i64 = 0
        self.written: i64 = 0
        """The place up to which the log can be read back."""
        self.full = False
        self.failed = False
        self.streams: Optional[Streams] = None  # noqa: UP045
        """The streams that are written with its batches."""
        self.on_synced: Callable[[int], None] = _ignore
        self.on_full: Callable[[bool], None] = _ignore
        self.on_failed: Callable[[str], None] = _ignore

        self._loop = loop
        self._gate = gate
        self._folder = recovery.folder
        self._batch_size: i64 = batch_size
        self._ack_delay = 0.0 if sync is Sync.ALWAYS else ack_delay
        self._queues: dict[int, QueueLog] = {}
        for incarnation, live in recovery.live.items():
            queue = QueueLog(incarnation)
            queue.live = live
            queue.counts = recovery.queues[incarnation].counts
            self._queues[incarnation] = queue

        self._transients = 0

        # What collects for the next batch.
        self._touched: list[QueueLog] = []
        self._streams: list[StreamLog] = []
        """Those that have something for the next batch."""
        self._streamed = False
        """Some of them have messages."""
        self._group: list[bytes] | None = None
        self._group_added: list[tuple[QueueLog, int, int]] = []
        self._group_gone: list[tuple[QueueLog, int]] = []

        held = recovery.segments
        held.append(Segment(recovery.next_segment, 0))
        # What is dead in the segment that is written to cannot be freed.
        self._segments = Segments(held, max(slack, segment_size), segment_size)
        self._tail = Tail(recovery.identity, recovery.block, segment_size, held[-1], 0)
        self.written = self._tail.base
        self._indexes = Indexes(self._segments, recovery.indexer)
        self.lookup = Lookup(recovery, self._settle, self.failure)
        """Where messages are read back from."""
        self.lookup.written(self.written)
        self.delivered: dict[int, int] = {}
        """Up to which sequence the messages of a queue may have been delivered before a crash; kept by a clean stop."""

        self._idle = True
        self._in_flight: Batch | None = None
        self._ready: deque[Batch] = deque()
        self._written: deque[Batch] = deque()
        self._ack_timer: asyncio.TimerHandle | None = None
        self._acks_due = False
        self._compactor = Compactor(self._segments, recovery)
        self._closing: asyncio.Future[None] | None = None
        self._stopping = False
        self._attempts = 0
        self._writer = Writer(
            recovery.folder,
            recovery.files,
            loop.call_soon_threadsafe,
            self,
            retry=retry,
            sync=sync is not Sync.OFF,
            ahead=ahead,
        )
        self._writer.start()
        if gate is not None:
            gate.watch(self.committed)
        self._tidy()

    def queue(self, incarnation: int) -> QueueLog:
        """The handle of a queue, new or recovered."""
        queue = self._queues.get(incarnation)
        if queue is None:
            queue = QueueLog(incarnation)
            self._queues[incarnation] = queue
        return queue

    def transient_queue(self) -> QueueLog:
        """The handle of a queue whose messages do not outlive the process."""
        self._transients += 1
        return self.queue(TRANSIENT_QUEUES + self._transients)

    @property
    def settled(self) -> bool:
        """Whether everything that was appended is on the disk and known to be there."""
        return (
            self.synced == self.batch - 1 and self._tail.size == 0 and not self._touched and not self._streams
        )

    @property
    def grouped(self) -> bool:
        """Whether what is appended now holds together."""
        return self._group is not None

    def message(self, queue: QueueLog, sequence: i64, head: bytes, content: bytes) -> i64:
        """One persistent message; `head + content` is what recovery gives back. Returns its place, 0 in a group.

        Messages of a queue in a row whose `head` is the same object share a record.
        """
        if self._group is not None:
            self._group.append(entry(MESSAGE, queue.incarnation, sequence, head + content))
            self._group_added.append((queue, sequence, HEADER + len(head) + len(content)))
            return 0
        tail = self._tail
        alone: i64 = HEADER + len(head) + len(content)
        size: i64 = tail.join(queue.incarnation, sequence, head, content)
        if not size:
            tail.finish()
            size = alone
            if tail.offset + size > tail.stop or tail.size > self._batch_size:
                self._make_room(size)
            tail.begin(queue.incarnation, sequence, head, content)
        self.unwritten += size
        # What a copy would cost: compaction must free more than it writes.
        queue.added_bytes += alone
        if sequence == queue.added_last + 1:
            queue.added_last = sequence
        else:
            self._added(queue, sequence)
        if self._idle:
            self._wake()
        return tail.place

    def spill(self, queue: QueueLog, sequence: i64, head: bytes, content: bytes) -> i64:
        """A message that is written to make room in memory, and does not outlive the process. Returns its place."""
        payload = head + content
        size: i64 = HEADER + len(payload)
        self._make_room(size)
        place: i64 = self._tail.base + self._tail.offset
        self._put(SPILL, queue.incarnation, sequence, payload)
        self._tail.spilled += size
        queue.added_bytes += size
        self._added(queue, sequence)
        if self._idle:
            self._wake()
        return place

    def fan_out(self, targets: list[tuple[QueueLog, int]], head: bytes, content: bytes) -> i64:
        """One message for several queues, of which each target names one and the message's sequence there:
        the content is written once, and after a crash all of them have it or none. Returns its place, 0 in a group."""
        table: list[int] = []
        for queue, sequence in targets:
            table.append(queue.incarnation)
            table.append(sequence)
        payload = b"".join((fan_out_table(table), head, content))
        share: i64 = (HEADER + len(payload)) // len(targets)
        if self._group is not None:
            self._group.append(entry(FAN_OUT, table[0], table[1], payload))
            for queue, sequence in targets:
                self._group_added.append((queue, sequence, share))
            return 0
        self._make_room(HEADER + len(payload))
        place: i64 = self._tail.base + self._tail.offset
        self._put(FAN_OUT, table[0], table[1], payload)
        for queue, sequence in targets:
            queue.added_bytes += share
            self._added(queue, sequence)
        if self._idle:
            self._wake()
        return place

    def acknowledge(self, queue: QueueLog, sequence: i64) -> None:
        """The message is gone: acknowledged, expired, dropped or purged. Written after `ack_delay` at the
        latest."""
        if self._group is not None:
            self._group.append(entry(ACK, queue.incarnation, sequence, pairs([sequence, sequence])))
            self._group_gone.append((queue, sequence))
        elif sequence == queue.gone_last + 1:
            queue.gone_last = sequence
        else:
            if queue.gone_last != NONE:
                queue.gone.append(queue.gone_first)
                queue.gone.append(queue.gone_last)
            queue.gone_first = sequence
            queue.gone_last = sequence
            self._touch(queue)
            self._expect_acks()

    def mark(self, queue: QueueLog, sequence: i64, count: i64) -> None:
        """The message has been delivered `count` times. Counts only grow: recovery gives the highest."""
        if count <= queue.counts.get(sequence, 0):
            return
        queue.counts[sequence] = count
        if self._group is not None:
            self._group.append(entry(MARK, queue.incarnation, sequence, pairs([sequence, count])))
        else:
            self.mark_again(queue, sequence)

    def mark_again(self, queue: QueueLog, sequence: i64) -> None:
        """Write the delivery count of a message, if it has one: the message has been copied forward, and the
        record of its count must not go before it."""
        count = queue.counts.get(sequence, 0)
        if count:
            queue.marks[sequence] = count
            self._touch(queue)
            self._expect_acks()

    def begin(self) -> None:
        """What is appended up to `end` is one record: after a crash it counts whole or not at all. Nothing is
        awaited in between, and groups do not nest."""
        assert self._group is None, "groups of the log do not nest"
        self._group = []

    def end(self) -> None:
        """The group ends."""
        group = self._group
        assert group is not None, "no group of the log has begun"
        self._group = None
        if not group:
            return
        payload = b"".join(group)
        self._make_room(HEADER + len(payload))
        self._put(GROUP, 0, len(group), payload)
        for queue, sequence, size in self._group_added:
            queue.added_bytes += size
            self._added(queue, sequence)
        for queue, sequence in self._group_gone:
            # At once, not when the batch is cut: compaction must not copy a message behind the record of its
            # removal.
            self._settle(queue)
            queue.end([sequence, sequence], self.batch)
        self._group_added = []
        self._group_gone = []
        if self._idle:
            self._wake()

    def drop(self, queue: QueueLog) -> None:
        """The queue is deleted, its deletion submitted to the definitions before: all its messages are
        dead."""
        if queue.dropped:
            return
        self._settle(queue)
        queue.dropped = True
        queue.live.clear_all(self._gate.submitted if self._gate is not None else 0)
        self._queues.pop(queue.incarnation, None)

    def expect(self, stream: StreamLog, urgent: bool) -> None:
        """A stream has something for the next batch: messages, or what may wait as acknowledgements do."""
        if not stream.touched:
            stream.touched = True
            self._streams.append(stream)
        if not urgent:
            self._expect_acks()
            return
        self._streamed = True
        if self._idle:
            self._wake()

    def seal(self) -> None:
        """Close the batch that collects: what a stream has for it has become large."""
        self._seal()

    def remove(self, paths: list[str]) -> None:
        """Remove segments of streams, after what is yet to be written."""
        if not self._stopping:
            self._writer.jobs.put(Removal(paths))

    # Reading back

    def indexed_before(self) -> i64:
        """The place before which every segment that holds something live has an index."""
        return self._indexes.until()

    def close_segment(self) -> None:
        """Close the segment that is written to, if much stands in it, so that it gets an index."""
        self._indexes.soon = True
        if self._tail.offset > EARLY and self._group is None and not self.full and self._closing is None:
            self._roll()

    def want_index(self) -> None:
        """Somebody waits for the index of each segment that is closed."""
        self._indexes.soon = True

    def copied(self, queue: QueueLog, sequence: i64, place: i64, payload: bytes) -> None:
        """Compaction has appended a message again, there."""
        queue.moved[int(sequence)] = int(place)
        self.lookup.copies[int(place)] = payload

    async def close(self) -> None:
        """Write and sync everything, mark the stop as clean, end the worker.

        :raises StoreError: there is no room on the disk; what was not confirmed is not written.
        """
        if self._closing is None:
            self._closing = self._loop.create_future()
            if self._idle:
                self._cut()
            self._finish()
        await asyncio.shield(self._closing)
        self._writer.join()
        if self.full and not self.failed:
            raise StoreError(f"no room left in {self._folder}: not all of the log was written", ExitStatus.IO)

    # Appending

    def _added(self, queue: QueueLog, sequence: i64) -> None:
        """A message was appended to the current segment."""
        if sequence == queue.added_last + 1:
            queue.added_last = sequence
            return
        if queue.added_last != NONE:
            queue.added.append(queue.added_first)
            queue.added.append(queue.added_last)
        queue.added_first = sequence
        queue.added_last = sequence
        self._touch(queue)

    def _touch(self, queue: QueueLog) -> None:
        if not queue.touched:
            queue.touched = True
            self._touched.append(queue)

    def _make_room(self, size: i64) -> None:
        """Before a record that does not fit in this block: close a batch that has become large; begin a new
        segment where this one would become too large."""
        self._tail.finish()
        if self._tail.size > self._batch_size:
            self._seal()
        if self._tail.overflows(size):
            self._roll()

    def _put(self, kind: int, incarnation: i64, sequence: i64, payload: bytes) -> None:
        self._tail.finish()
        if self._tail.overflows(HEADER + len(payload)):
            self._roll()
        self.unwritten += self._tail.put(kind, incarnation, sequence, payload)

    def _roll(self) -> None:
        for queue in self._touched:
            self._settle(queue)
        self._tail.cut(self.batch)
        segment = Segment(self._tail.segment.number + 1, 0)
        self._segments.held.append(segment)
        self._tail.enter(segment, 0)

    def _settle(self, queue: QueueLog) -> None:
        """The messages that were appended for a queue are live in the current segment."""
        runs = queue.take_added()
        if runs and not queue.dropped:
            queue.live.add(self._tail.segment, runs, queue.added_bytes)
        queue.added_bytes = 0

    def _forget_gone(self) -> None:
        """What was acknowledged since the last batch is dead, though the records of that are yet to be
        written."""
        for queue in self._touched:
            queue.end(queue.gone_runs(), 0)

    # Batches

    def _wake(self) -> None:
        self._idle = False
        self._loop.call_soon(self._cut)

    def _expect_acks(self) -> None:
        if self._ack_timer is None:
            self._ack_timer = self._loop.call_later(self._ack_delay, self._ack_time)

    def _ack_time(self) -> None:
        self._ack_timer = None
        if self._idle:
            self._cut()
        else:
            self._acks_due = True

    def _cut(self) -> None:
        """Hand the next batch to the worker, unless it has one."""
        self._idle = False
        if self._in_flight is not None or self.failed:
            return
        if not self._ready:
            self._seal()
        if self._ready:
            self._in_flight = self._ready.popleft()
            self._writer.jobs.put(self._in_flight)
        else:
            self._idle = True

    def _seal(self) -> None:
        """Close the batch that collects: its acknowledgements become records, and what it changes becomes
        known."""
        touched = self._touched
        for queue in touched:
            if not queue.dropped:
                self._seal_queue(queue)
            queue.touched = False
            queue.added_last = NONE
        self._touched = []
        self._acks_due = False
        tail = self._tail
        tail.cut(self.batch)
        size: i64 = tail.size
        parts = []
        for stream in self._streams:
            part = stream.cut()
            if part is not None:
                parts.append(part)
                size += part.size
        self._streams = []
        self._streamed = False
        if size > 0 or parts:
            change = self._gate.submitted if self._gate is not None else 0
            durable = tail.spilled < tail.size or bool(parts)
            end = tail.base + tail.offset
            self._ready.append(Batch(self.batch, tail.take(), size, change, end, durable, parts))
            self.batch += 1

    def _seal_queue(self, queue: QueueLog) -> None:
        gone = queue.gone_runs()
        if gone:
            payload = pairs(gone)
            self._put(ACK, queue.incarnation, gone[0], payload)
            queue.gone = []
            queue.gone_last = NONE
        if queue.marks:
            values: list[int] = []
            for sequence, count in queue.marks.items():
                values.append(sequence)
                values.append(count)
            payload = pairs(values)
            self._put(MARK, queue.incarnation, values[0], payload)
            queue.marks = {}
        self._settle(queue)
        if gone:
            queue.end(gone, 0)

    def _release(self) -> None:
        """Tell of batches that are written and whose definitions are committed, in order."""
        while self._written:
            batch = self._written[0]
            if self._gate is not None and batch.change > self._gate.committed:
                break
            self._written.popleft()
            self.synced = batch.number
            for part in batch.streams:
                part.stream.commit(part)
            self.on_synced(batch.number)

    def _tidy(self) -> None:
        """Remove the segments that nobody needs, and copy forward what keeps too many of them."""
        if self.failed or self._stopping:
            return
        committed = self._gate.committed if self._gate is not None else 0
        removed = self._segments.removable(self.synced, committed)
        if removed:
            self._writer.jobs.put(Unlink([segment.number for segment in removed]))
            for segment in removed:
                if segment.index is None:
                    forget_moves(segment.number, self._queues)
        if self.full or self._closing is not None:
            return
        job = self._indexes.next_job(self.synced)
        if job is not None:
            self._writer.jobs.put(job)
        part = self._compactor.next_slice(self.synced)
        if part is not None:
            self._writer.jobs.put(part)

    def _finish(self) -> None:
        """When the log is being closed: end the worker once nothing is left to write, or nothing can be
        written."""
        if self._closing is None or self._stopping:
            return
        if self.failed or (self.full and self._attempts > 1):
            self._stopping = True
            self._writer.jobs.put(Stop(None))
        elif self._in_flight is None and self._idle:
            self._stopping = True
            self._writer.jobs.put(Stop((self._tail.segment.number, self._tail.offset, self.delivered)))

    # What the worker reports, on the loop

    def wrote(self, batch: Batch) -> None:
        """A batch is on the disk."""
        self._in_flight = None
        self.unwritten -= batch.size
        self.written = batch.end
        self.lookup.written(self.written)
        self._written.append(batch)
        self._release()
        if (
            self._ready
            or self._tail.size > 0
            or self._streamed
            or self._acks_due
            or self._closing is not None
        ):
            self._cut()
        else:
            self._idle = True
        self._tidy()
        self._finish()

    def read(self, part: Slice) -> None:
        """A part of the segment that is being compacted was read."""
        if self.failed or self._closing is not None:
            return
        # A message whose acknowledgement has yet to be written must not be copied behind it.
        self._forget_gone()
        self._compactor.copy(part, self, self._queues)
        self._tidy()

    def indexed(self, job: IndexJob) -> None:
        """A slice of a segment was indexed, or the index was written."""
        if not job.finished and not self.failed and self._closing is None:
            self._writer.jobs.put(job)
            return
        self._indexes.take(job, self._queues)
        self._tidy()

    def room(self, enough: bool) -> None:
        """The disk is full, still full, or has room again."""
        if self.full == enough:
            self.full = not enough
            self.on_full(self.full)
        if self.full:
            # The acknowledgements wait for room, but what they let go of makes room.
            self._forget_gone()
            self._tidy()
            if self._closing is not None:
                # The first report may be of an attempt that was made before.
                self._attempts += 1
        self._finish()

    def failure(self, text: str) -> None:
        """The disk failed: nothing is written any more."""
        if not self.failed:
            self.failed = True
            self.on_failed(text)
        self._finish()

    def stopped(self) -> None:
        """The worker has ended."""
        if not self._stopping:
            self.failure(f"the thread that writes the log in {self._folder} has ended")
        if self._ack_timer is not None:
            self._ack_timer.cancel()
        if self._closing is not None and not self._closing.done():
            self._closing.set_result(None)

    def committed(self) -> None:
        """Definitions were committed."""
        self._release()
        self._tidy()


def _ignore(_: object) -> None:
    return


__all__ = ["Gate", "Log", "QueueLog"]
