"""The node's write-ahead log: appends records to segments and closes batches for group commit.

All code here runs on the event loop and awaits nothing except in `close`. One thread (`WriterThread`) reads and writes
the segment files.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Optional

from mypy_extensions import i64

from warren.broker.store.errors import StoreError
from warren.broker.store.index.index_job import IndexJob
from warren.broker.store.index.index_scheduler import IndexScheduler
from warren.broker.store.log.compaction import Compactor
from warren.broker.store.log.group_commit import Gate, GroupCommit, Sync
from warren.broker.store.log.pending_changes import PendingChanges
from warren.broker.store.log.queue_log import QueueLog
from warren.broker.store.log.record_format import (
    ACK,
    DELIVERY_COUNT,
    FAN_OUT,
    FIRST_TRANSIENT_INCARNATION,
    GROUP,
    HEADER,
    LARGE_RECORD,
    SPILL,
    encode_fan_out_targets,
    pack_pairs,
)
from warren.broker.store.log.record_group import RecordGroup
from warren.broker.store.log.recovery import Recovery
from warren.broker.store.log.segment import Segment, SegmentList
from warren.broker.store.log.segment_deletion import SegmentDeletion
from warren.broker.store.log.segment_writer import PREALLOCATION
from warren.broker.store.log.write_buffer import SEGMENT_SIZE, WriteBuffer
from warren.broker.store.log.writer_jobs import (
    Batch,
    CleanEnd,
    CompactionRead,
    DeleteStreamSegments,
    StopWriter,
)
from warren.broker.store.log.writer_thread import WriterThread
from warren.broker.store.read.sequence_lookup import SequenceLookup
from warren.broker.store.sequence_ranges import NONE
from warren.broker.store.stream.stream_log import StreamLog
from warren.core.errors import ExitStatus

if TYPE_CHECKING:
    from warren.broker.store.stream.stream_store import StreamStore

SLACK: Final = 4 * SEGMENT_SIZE
"""Default of the bytes that the log may use beyond twice the bytes of messages in queues before compaction begins."""
BATCH_SIZE: Final = 8 * 1024 * 1024
"""Default size in bytes at which a batch of records is closed and written, and the next one is begun.

Without a limit, later messages would delay the publisher confirms of the first ones.
"""
ACK_DELAY: Final = 0.2
"""Default of the seconds that acknowledgements wait for a message that is written in the same batch."""
MIN_ROLLED_SIZE: Final = SEGMENT_SIZE // 4
"""Size in bytes below which `roll_segment` does not close a segment, because many small segments cause compaction."""
RETRY: Final = 1.0
"""Seconds between attempts to write to a full disk."""


class LogState(enum.Enum):
    """States of a log: open, writing its last records, or waiting for the end of its writer thread."""

    OPEN = "open"
    CLOSING = "closing"
    """`close` was called: the appended records are being written; no segment is indexed or compacted any more."""
    STOPPING = "stopping"
    """The writer thread has got its last job, which ends it."""


class Log:
    """The log of one data folder, made from the result of `recover`. The constructor starts its writer thread.

    The caller has called `finish` of that result.

    Appended records are collected in a batch, which is written and synced as a whole. Read the number of the batch from
    `batch` after appending a record, since the append may have begun a new batch. The record is on disk when `synced`
    has reached this number. The caller numbers each queue's messages with ascending sequence numbers, from 1 or higher.

    Methods that append a message take it in two parts, and recovery returns `head + content`. `head` holds what
    successive messages of a queue usually have in common, such as exchange and routing key. The queue passes the same
    bytes object for it again and again: a comparison by identity then shows that the messages can share a record.
    `content` is the rest. The methods return the log position of the message (segment and offset, as one number), from
    which `lookup` reads it back.

    :param gate: the definitions database: a batch is confirmed once all queues added there before it are on disk.
    :param segment_size: bytes after which a new segment is begun.
    :param slack: bytes that the log may use beyond twice the bytes of its live messages before it is compacted; a value
        below `segment_size` counts as `segment_size`.
    :param batch_size: bytes after which a batch is closed.
    :param ack_delay: seconds that acknowledgements wait for a message that is written in the same batch.
    :param retry: seconds between attempts to write to a full disk.
    :param preallocate: bytes by which a segment's file is made longer at a time, so that syncs are quick.
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
        preallocate: int = PREALLOCATION,
    ) -> None:
        self.batch: i64 = 1
        """Number of the batch to which a record that is appended now belongs."""
        self._written_batch: i64 = 0
        """Number of the last batch that the writer thread has written."""
        self.synced: i64 = 0
        """Number of the last durable batch.

        It is on disk, and so are all queues that were added to the definitions database before it.
        """
        self.unwritten_bytes: i64 = 0
        """Bytes that were appended to the log and to streams and are not on disk yet."""
        self.written_position: i64 = 0
        """Log position up to which messages can be read back."""
        self.disk_full = False
        """True while writes wait for room on a full disk."""
        self.failed = False
        """True if the disk has failed: nothing more is written or read."""
        self.streams: Optional[StreamStore] = None  # noqa: UP045
        """Store of the streams whose messages are written with the log's batches; None if there is none."""
        self.on_synced: Callable[[int], None] = _ignore
        """Callback for each durable batch: it gets the number of the batch and sends the publisher confirms.

        The batch is on disk, and so are all queues that were added to the definitions database before it.
        """
        self.on_full: Callable[[bool], None] = _ignore
        """Callback that gets True when the disk is full, and False when it has room again."""
        self.on_failed: Callable[[str], None] = _ignore
        """Callback that is called once, with the reason, when the disk fails."""
        self.delivered_up_to: dict[int, int] = {}
        """For each queue, by its number in the log, the last message that may have been delivered before a crash.

        `close` stores these sequence numbers. The next start marks the messages up to them as redelivered.
        """

        self._loop = loop
        self._folder = recovery.folder
        self._batch_size: i64 = batch_size
        self._queues: dict[int, QueueLog] = {}
        for incarnation, live in recovery.live.items():
            queue = QueueLog(incarnation)
            queue.live = live
            queue.counts = recovery.queues[incarnation].counts
            self._queues[incarnation] = queue
        self._transients = 0
        self._group: Optional[RecordGroup] = None  # noqa: UP045
        self._changes = PendingChanges(loop, 0.0 if sync is Sync.ALWAYS else ack_delay, self._ack_delay_over)

        segments = recovery.segments
        segments.append(Segment(recovery.next_segment, 0))
        self._segments = SegmentList(segments, segment_size)
        self._buffer = WriteBuffer(recovery.identity, recovery.block, segment_size, segments[-1], 0)
        self.written_position = self._buffer.base
        self.lookup = SequenceLookup(recovery, self._add_live, self.on_write_failure)
        """Reader of messages of the log, by their sequence number in the queue."""
        self.lookup.set_written_position(self.written_position)

        self._state = LogState.OPEN
        self._closed: asyncio.Future[None] | None = None
        self._full_reports = 0
        """Number of reports of a full disk since `close` was called; at the second one, `close` gives up."""
        assert recovery.manifest.has_begun, "recovery is not finished"
        self._writer = WriterThread(
            recovery.folder,
            recovery.files,
            recovery.manifest,
            loop.call_soon_threadsafe,
            self,
            retry=retry,
            sync=sync is not Sync.OFF,
            preallocate=preallocate,
            identity=recovery.identity,
        )
        self.statistics = self._writer.statistics
        """Sizes of group commits and durations of syncs. Only the writer thread adds to it."""
        self._commit = GroupCommit(loop, self._writer.jobs, gate, self.close_batch, self._release)
        self._deletion = SegmentDeletion(self._segments, self._writer.jobs)
        self._indexes = IndexScheduler(self._segments, recovery.indexes)
        # Dead bytes of the segment that is written to cannot be freed.
        self._compactor = Compactor(self._segments, recovery, max(slack, segment_size))
        self._writer.start()
        if gate is not None:
            gate.watch(self._on_definitions_committed)
        self._maintain_segments()
        self._record_recalled(recovery)

    def queue(self, incarnation: int) -> QueueLog:
        """Return the handle of a queue; make a new one for a queue that the log does not know.

        :param incarnation: the number that names the queue in the log.
        """
        queue = self._queues.get(incarnation)
        if queue is None:
            queue = QueueLog(incarnation)
            self._queues[incarnation] = queue
        return queue

    def transient_queue(self) -> QueueLog:
        """Return the handle of a new queue whose messages do not outlive the process."""
        self._transients += 1
        return self.queue(FIRST_TRANSIENT_INCARNATION + self._transients)

    def segment_bytes(self) -> tuple[int, int]:
        """Return the bytes of all segment files of the log, and of the messages in them that are still in queues."""
        return int(self._segments.size()), int(self._segments.live_bytes())

    @property
    def compacted_bytes(self) -> int:
        """Bytes of live messages that compaction has copied since the start."""
        return self._compactor.copied_bytes

    @property
    def is_synced(self) -> bool:
        """True if all appended records are on disk, and so are the queues added to the definitions before them."""
        changes = self._changes
        return (
            self.synced == self.batch - 1
            and self._buffer.size == 0
            and not changes.queues
            and not changes.streams
        )

    @property
    def last_batch(self) -> i64:
        """Number of the last batch that has records: the current one, or the one before while it has none."""
        changes = self._changes
        if self._buffer.size or changes.queues or changes.streams:
            return self.batch
        return self.batch - 1

    def unwritten_batch(self, batch: i64) -> i64:
        """Return the last batch up to a number that has records which are not on disk; 0 if there is none."""
        if batch == self.batch and not self._buffer.size:
            batch -= 1
        return batch if batch > self._written_batch else 0

    def write_scheduled(self) -> None:
        """Hand the current batch to the writer thread, if that is scheduled for this iteration of the event loop."""
        self._commit.write_scheduled()

    @property
    def in_group(self) -> bool:
        """True between `begin_group` and `end_group`, while appended records are collected for one atomic record."""
        return self._group is not None

    # Appending records

    def append_message(self, queue: QueueLog, sequence: i64, head: bytes, content: bytes) -> i64:
        """Append a persistent message and return its log position; return 0 while a group is open.

        Between `begin_group` and `end_group` records are only collected, so the message has no position yet. Successive
        messages of a queue share one record if the same bytes object is passed as their `head`.

        :param sequence: the number of the message in its queue.
        :param head: the first part of the encoded message.
        :param content: the rest.
        """
        if self._group is not None:
            self._group.add_message(queue, sequence, head + content)
            return 0
        buffer = self._buffer
        alone: i64 = HEADER + len(head) + len(content)
        size: i64 = buffer.extend_bundle(queue.incarnation, sequence, head, content)
        if not size:
            buffer.finish_bundle()
            size = alone
            if buffer.offset + size > buffer.stop or buffer.size > self._batch_size:
                self._make_room(size)
            buffer.begin_bundle(queue.incarnation, sequence, head, content)
        self.unwritten_bytes += size
        # The cost of a copy: compaction must free more than it writes.
        queue.added_bytes += alone
        if sequence == queue.added_last + 1:
            queue.added_last = sequence
        else:
            self._note_added(queue, sequence, sequence)
        if self._commit.idle:
            self._commit.schedule()
        return buffer.bundle_position

    def spill(self, queue: QueueLog, sequence: i64, head: bytes, content: bytes) -> i64:
        """Append a message that is paged out of memory, and return its log position.

        The message need not outlive the process: recovery ignores it.

        :param sequence: the number of the message in its queue.
        :param head: the first part of the encoded message.
        :param content: the rest.
        """
        size: i64 = HEADER + len(head) + len(content)
        self._make_room(size)
        position: i64 = self._buffer.base + self._buffer.offset
        self._append_pieces(SPILL, queue.incarnation, sequence, [head, content])
        self._buffer.spilled += size
        queue.added_bytes += size
        self._note_added(queue, sequence, sequence)
        if self._commit.idle:
            self._commit.schedule()
        return position

    def fan_out(self, targets: list[tuple[QueueLog, int]], head: bytes, content: bytes) -> i64:
        """Append one message for several queues and return its log position; return 0 while a group is open.

        The content is written once. After a crash all queues have the message or none has it. Between `begin_group` and
        `end_group` records are only collected, so the message has no position yet.

        :param targets: the queues, each with the sequence number of the message there.
        :param head: the first part of the encoded message.
        :param content: the rest.
        """
        table: list[int] = []
        for queue, sequence in targets:
            table.append(queue.incarnation)
            table.append(sequence)
        pieces = [encode_fan_out_targets(table), head, content]
        size: i64 = HEADER + len(pieces[0]) + len(head) + len(content)
        share: i64 = size // len(targets)
        if self._group is not None:
            self._group.add_fan_out(targets, b"".join(pieces), share)
            return 0
        self._make_room(size)
        position: i64 = self._buffer.base + self._buffer.offset
        self._append_pieces(FAN_OUT, table[0], table[1], pieces)
        for queue, sequence in targets:
            queue.added_bytes += share
            self._note_added(queue, sequence, sequence)
        if self._commit.idle:
            self._commit.schedule()
        return position

    def acknowledge(self, queue: QueueLog, sequence: i64) -> None:
        """Record that a message has left its queue: acknowledged, expired, dropped or purged.

        The record is written with the next message, after `ack_delay` at the latest.
        """
        if self._group is not None:
            self._group.acknowledge(queue, sequence)
        elif sequence == queue.ended_last + 1:
            queue.ended_last = sequence
        else:
            queue.begin_ended_range(sequence)
            self._changes.add_delayed(queue)

    def record_delivery_count(self, queue: QueueLog, sequence: i64, count: i64) -> None:
        """Record the delivery count of a message, unless the recorded one is as high. Recovery returns the highest.

        The log does not interpret the number. The broker passes one that also holds other state of the message, such as
        the redelivered flag (`message_codec.message_mark`).
        """
        if count <= queue.counts.get(sequence, 0):
            return
        queue.counts[sequence] = count
        if self._group is not None:
            self._group.record_delivery_count(queue, sequence, count)
        else:
            self.rewrite_delivery_count(queue, sequence)

    def rewrite_delivery_count(self, queue: QueueLog, sequence: i64) -> None:
        """Append a new record of a message's known delivery count to one of the next batches, unless the count is 0.

        Compaction calls this for each message that it copies to a new segment: the old segment, which may hold the
        earlier record of the count, is deleted while the message is still in its queue.
        """
        count = queue.counts.get(sequence, 0)
        if count:
            queue.unwritten_counts[sequence] = count
            self._changes.add_delayed(queue)

    def begin_group(self, group: Optional[RecordGroup] = None) -> None:  # noqa: UP045
        """Begin a group: after a crash, all records appended up to `end_group` are recovered, or none of them.

        Transactions and other changes of several queues need it. Groups do not nest, and the caller awaits nothing
        before `end_group` or `suspend_group`.

        :param group: group to continue, which `suspend_group` has returned; None for a new one.
        """
        assert self._group is None, "groups of the log do not nest"
        self._group = RecordGroup() if group is None else group

    def suspend_group(self) -> RecordGroup:
        """Stop collecting records for the group, and return it; a later call of `begin_group` continues it.

        The records that it has collected are in the log when it is ended. If it never is, they are dropped.
        """
        group = self._group
        assert group is not None, "no group of the log has begun"
        self._group = None
        group.join()
        return group

    def group_size(self) -> i64:
        """Return the approximate bytes of the record that the open group becomes; 0 if no group is open."""
        return 0 if self._group is None else self._group.size

    def end_group(self) -> None:
        """End the group and append its collected records as one record, so that they are written all or none."""
        group = self._group
        assert group is not None, "no group of the log has begun"
        self._group = None
        group.encode_acknowledgements()
        if not group.count:
            return
        group.join()
        self._make_room(HEADER + group.length)
        self.unwritten_bytes += self._buffer.append_parts(GROUP, 0, group.count, group.parts, group.check)
        for queue, added in group.added.items():
            queue.added_bytes += added[0]
            for at in range(1, len(added), 2):
                self._note_added(queue, added[at], added[at + 1])
        for queue, ranges in group.ended.items():
            # At once, not when the batch is closed: compaction must not copy a message behind the record of its
            # acknowledgement.
            self._add_live(queue)
            queue.end_messages(ranges, self.batch)
        if self._commit.idle:
            self._commit.schedule()

    def drop_queue(self, queue: QueueLog) -> None:
        """Forget all messages of a deleted queue.

        The caller has submitted the deletion to the definitions database before. The segments of the messages are not
        deleted until that deletion is on disk.
        """
        if queue.dropped:
            return
        self._add_live(queue)
        queue.dropped = True
        queue.live.clear(self._commit.submitted_change())
        self._queues.pop(queue.incarnation, None)

    # Streams

    def add_pending_stream(self, stream: StreamLog, urgent: bool) -> None:
        """Add a stream to those whose messages or stored offsets are written with the next batch.

        :param urgent: True if it has messages; False if it has only stored offsets, which may wait for `ack_delay`.
        """
        self._changes.add_stream(stream)
        if not urgent:
            self._changes.start_delay()
            return
        self._changes.has_stream_messages = True
        if self._commit.idle:
            self._commit.schedule()

    def delete_stream_segments(self, paths: list[str], dropped: int = -1) -> None:
        """Have the writer thread delete segment files of streams, after the batch that it is writing now.

        :param paths: the paths of the files.
        :param dropped: incarnation (the number in the data folder) of a stream that is deleted with all its segments;
            -1 if the files are deleted for another reason.
        """
        if self._state is not LogState.STOPPING:
            self._writer.jobs.put(DeleteStreamSegments(paths, dropped))

    # Reading messages back

    def indexed_up_to(self) -> i64:
        """Return the log position before which every segment that holds messages still in a queue has an index.

        Messages before it can be found by their sequence number, so that a queue may drop their positions from memory.
        """
        return self._indexes.indexed_up_to()

    def roll_segment(self) -> None:
        """Close the current segment so that it gets an index and its messages can leave memory.

        A segment smaller than `MIN_ROLLED_SIZE` stays open.
        """
        self._indexes.urgent = True
        if (
            self._buffer.offset > MIN_ROLLED_SIZE
            and self._group is None
            and not self.disk_full
            and self._state is LogState.OPEN
        ):
            self._begin_segment()

    def request_indexes(self) -> None:
        """Index each segment from now on as soon as it is closed, because a queue waits to page its messages out."""
        self._indexes.urgent = True

    def record_copy(self, queue: QueueLog, sequence: i64, position: i64, payload: bytes) -> None:
        """Store the log position of the copy that compaction has made of a message at the end of the log.

        :param sequence: the number of the message in its queue.
        :param position: log position of the copy.
        :param payload: the encoded message, kept in memory for readers until the copy is on disk.
        """
        queue.copies[int(sequence)] = int(position)
        self.lookup.unwritten_copies[int(position)] = payload

    async def close(self) -> None:
        """Write and sync all appended records, mark the stop as clean, and end the writer thread.

        :raises StoreError: there is no room on the disk. Messages that were not confirmed are not written.
        """
        if self._closed is None:
            self._closed = self._loop.create_future()
            self._state = LogState.CLOSING
            if self._commit.idle:
                self._commit.write_next()
            self._stop_when_done()
        await asyncio.shield(self._closed)
        self._writer.join()
        if self.disk_full and not self.failed:
            raise StoreError(
                f"no room left in {self._folder}; the messages that were not confirmed are not written",
                ExitStatus.IO,
            )

    # Segments

    def _record_recalled(self, recovery: Recovery) -> None:
        """Record acknowledgements and delivery counts again whose records are lost; else the next start misses them."""
        for incarnation, ranges in recovery.recalled.items():
            queue = self._queues.get(incarnation)
            if queue is not None:
                queue.ended += ranges
                self._changes.add_queue(queue)
        for incarnation, sequence in recovery.recalled_counts:
            queue = self._queues.get(incarnation)
            if queue is not None:
                self.rewrite_delivery_count(queue, sequence)
        if self._changes.queues:
            self._commit.schedule()

    def _note_added(self, queue: QueueLog, first: i64, last: i64) -> None:
        """Note appended messages, to be counted as live (still in their queue) when the segment or batch is closed.

        Their sequence numbers are `first` to `last`.
        """
        if first == queue.added_last + 1:
            queue.added_last = last
            return
        queue.begin_added_range(first)
        queue.added_last = last
        self._changes.add_queue(queue)

    def _make_room(self, size: i64) -> None:
        """Prepare the append of a record: finish the open BUNDLE record, and begin a batch or segment if one is full.

        :param size: size of the record in bytes.
        """
        self._buffer.finish_bundle()
        if self._buffer.size > self._batch_size or (size >= LARGE_RECORD and self._buffer.size):
            # Records before a large one need not wait until it is written.
            self.close_batch()
        if self._buffer.overflows(size):
            self._begin_segment()

    def _append_record(self, kind: int, incarnation: i64, sequence: i64, payload: bytes) -> None:
        self._buffer.finish_bundle()
        if self._buffer.overflows(HEADER + len(payload)):
            self._begin_segment()
        self.unwritten_bytes += self._buffer.append(kind, incarnation, sequence, payload)

    def _append_pieces(self, kind: int, incarnation: i64, sequence: i64, pieces: list[bytes]) -> None:
        """Append a record of one message, whose payload is given in pieces, after `_make_room`."""
        if len(pieces[-1]) < LARGE_RECORD:
            self._append_record(kind, incarnation, sequence, b"".join(pieces))
        else:
            self.unwritten_bytes += self._buffer.append_large(kind, incarnation, sequence, pieces)

    def _begin_segment(self) -> None:
        """Close the segment that is written to and begin the next one."""
        for queue in self._changes.queues:
            self._add_live(queue)
        self._buffer.close_write(self.batch)
        segment = Segment(self._buffer.segment.number + 1, 0)
        self._segments.segments.append(segment)
        self._buffer.enter(segment, 0)

    def _add_live(self, queue: QueueLog) -> None:
        """Count the messages appended for a queue since the last call as live (still in it), in the current segment."""
        ranges = queue.take_added()
        if ranges and not queue.dropped:
            queue.live.add(self._buffer.segment, ranges, queue.added_bytes)
        queue.added_bytes = 0

    def _end_acknowledged(self) -> None:
        """Mark messages acknowledged since the last batch as no longer live, before a batch records that."""
        for queue in self._changes.queues:
            queue.end_messages(queue.ended_ranges(), 0)

    def _maintain_segments(self) -> None:
        """Have the writer thread delete segments whose messages have left their queues, and index or compact others."""
        if self.failed or self._state is LogState.STOPPING:
            return
        self._deletion.run(self.synced, self._commit.committed_change(), self._queues)
        if self.disk_full or self._state is not LogState.OPEN:
            return
        job = self._indexes.next_job(self.synced)
        if job is not None:
            self._writer.jobs.put(job)
        part = self._compactor.next_read(self.synced)
        if part is not None:
            self._writer.jobs.put(part)

    # Batches

    def close_batch(self) -> None:
        """Append waiting acknowledgements and delivery counts to the current batch, and queue it for the writer thread.

        A batch without anything to write is not queued, and stays the current one.
        """
        # The list stays whole in between: the segment may change, and then the messages of all of them are in the old one.
        for queue in self._changes.queues:
            if not queue.dropped:
                self._append_changes(queue)
            queue.has_changes = False
            queue.added_last = NONE
        self._changes.clear_queues()
        buffer = self._buffer
        buffer.close_write(self.batch)
        size: i64 = buffer.size
        parts = self._changes.take_streams()
        for part in parts:
            size += part.size
        if size > 0 or parts:
            change = self._commit.last_addition()
            durable = buffer.spilled < buffer.size or bool(parts)
            end = buffer.base + buffer.offset
            self._commit.add(Batch(self.batch, buffer.take(), size, change, end, durable, parts))
            self.batch += 1

    def _append_changes(self, queue: QueueLog) -> None:
        """Append the acknowledgements and delivery counts of a queue since the last batch."""
        ended = queue.ended_ranges()
        if ended:
            self._append_record(ACK, queue.incarnation, ended[0], pack_pairs(ended))
            queue.forget_ended()
        if queue.unwritten_counts:
            values: list[int] = []
            for sequence, count in queue.unwritten_counts.items():
                values.append(sequence)
                values.append(count)
            self._append_record(DELIVERY_COUNT, queue.incarnation, values[0], pack_pairs(values))
            queue.unwritten_counts = {}
        self._add_live(queue)
        if ended:
            queue.end_messages(ended, 0)

    def _ack_delay_over(self) -> None:
        if self._commit.idle:
            self._commit.write_next()
        else:
            self._changes.delay_is_over = True

    def _release(self, batch: Batch) -> None:
        """Report a durable batch to its streams, and to the callback `on_synced`, which sends publisher confirms."""
        self.synced = batch.number
        for part in batch.streams:
            part.stream.commit(part)
        self.on_synced(batch.number)

    def _on_definitions_committed(self) -> None:
        self._commit.release()
        self._maintain_segments()

    def _stop_when_done(self) -> None:
        """End the writer thread of a closing log once nothing is left to write, or nothing can be written."""
        if self._state is not LogState.CLOSING:
            return
        if self.failed or (self.disk_full and self._full_reports > 1):
            self._state = LogState.STOPPING
            self._writer.jobs.put(StopWriter(None))
        elif self._commit.idle and not self._commit.is_writing:
            self._state = LogState.STOPPING
            end = CleanEnd(self._buffer.segment.number, self._buffer.offset, self.delivered_up_to)
            self._writer.jobs.put(StopWriter(end))

    # Reports of the writer thread (WriterListener)

    def on_batch_written(self, batch: Batch) -> None:
        """Release a batch that is on disk, so that its publisher confirms are sent, and write the next one."""
        self.unwritten_bytes -= batch.size
        self.written_position = batch.end
        self.lookup.set_written_position(self.written_position)
        self._written_batch = batch.number
        self._commit.written(batch)
        if (
            self._commit.has_closed_batches
            or self._buffer.size > 0
            or self._changes.has_stream_messages
            or self._changes.delay_is_over
            or self._state is not LogState.OPEN
        ):
            self._commit.write_next()
        else:
            self._commit.idle = True
        self._maintain_segments()
        self._stop_when_done()

    def on_compaction_read(self, part: CompactionRead) -> None:
        """Append copies of the messages that a compaction job has read, if they are still in their queue."""
        if self.failed or self._state is not LogState.OPEN:
            return
        # A message whose acknowledgement has yet to be written must not be copied behind it.
        self._end_acknowledged()
        self._compactor.copy(part, self, self._queues)
        self._maintain_segments()

    def on_index_progress(self, job: IndexJob) -> None:
        """Pass an unfinished index job to the writer thread again, or use the index that a finished one has built."""
        if not job.finished and not self.failed and self._state is LogState.OPEN:
            self._writer.jobs.put(job)
            return
        self._indexes.finish(job, self._queues)
        self._maintain_segments()

    def on_disk_space(self, enough: bool) -> None:
        """Update the attribute `disk_full` after a write that found no room, or one that succeeded again.

        While the disk is full, delete segments whose messages were all acknowledged.

        :param enough: True if the disk has room.
        """
        if self.disk_full == enough:
            self.disk_full = not enough
            self.on_full(self.disk_full)
        if self.disk_full:
            # The records of the acknowledgements wait for room, but the messages that they end make room.
            self._end_acknowledged()
            self._maintain_segments()
            if self._state is not LogState.OPEN:
                # The first report may be of an attempt from before `close`.
                self._full_reports += 1
        self._stop_when_done()

    def on_write_failure(self, text: str) -> None:
        """Stop writing, and pass the description of the first disk failure to the callback `on_failed`.

        :param text: one line for the operator.
        """
        if not self.failed:
            self.failed = True
            self._commit.halt()
            self.on_failed(text)
        self._stop_when_done()

    def on_writer_stopped(self) -> None:
        """Complete `close`. If the writer thread has ended without a request, report that as a disk failure."""
        if self._state is not LogState.STOPPING:
            self.on_write_failure(f"the thread that writes the log in {self._folder} has ended")
        self._changes.cancel_delay()
        self._commit.stop_watch()
        if self._closed is not None and not self._closed.done():
            self._closed.set_result(None)


def _ignore(_: object) -> None:
    return


__all__ = ["Log"]
