"""Compaction of the log: messages of the oldest segment that are still in their queue are copied to the end of the log.

Then the segment can be deleted.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from warren.broker.store.log.record_format import (
    FAN_OUT,
    MESSAGE,
    SPILL,
    Record,
    decode_fan_out,
    expand_record,
    segment_seed,
)
from warren.broker.store.log.recovery import Recovery
from warren.broker.store.log.segment import NEVER, Segment, SegmentList
from warren.broker.store.log.segment_reader import SegmentReader, segment_path
from warren.broker.store.log.writer_jobs import CompactionRead

if TYPE_CHECKING:
    from warren.broker.store.log.log import Log
from warren.broker.store.log.queue_log import QueueLog

logger = logging.getLogger(__name__)

SLICE: Final = 256 * 1024
"""Bytes of a segment that are read at a time. The writer thread reads them, and publisher confirms wait meanwhile."""
MIN_SEGMENTS: Final = 8
"""Number of segments that the log may have without compaction.

It may have four more for each `segment_size` bytes of messages in queues. Above that, compaction begins even if the
size of the log in bytes is within its limit.
"""


class Compactor:
    """Compaction of one log: copies the live messages of the oldest segment to the end of the log.

    Live messages are those that are still in their queue. Compaction runs while too little of the log is live messages.

    A copy keeps the queue and sequence number of its message. A crash between the copy and the deletion of the original
    leaves two records of one message, and recovery takes the newer one. A message is copied on the event loop, and
    only while no acknowledgement of it has been appended. So its acknowledgement always follows all of its copies.

    :param slack: bytes that the log may use beyond twice the bytes of its live messages before compaction begins.
    """

    def __init__(self, segments: SegmentList, recovery: Recovery, slack: int) -> None:
        self._segments = segments
        self._slack = slack
        self._folder = recovery.folder
        self._files = recovery.files
        self._identity = recovery.identity
        self._block = recovery.block
        self._segment: Segment | None = None
        """The segment that is being compacted."""
        self._reader: SegmentReader | None = None
        self._reported = 0
        """Number of damaged places in the current segment that were reported in log lines."""
        self._is_reading = False
        self._copied_batch = 0
        """Number of the last batch of records that contains copies of messages."""
        self.copied_bytes = 0
        """Bytes of records that were appended as copies, since the start."""
        self._resumes_at = 0
        """Number of the segment before whose beginning there is no compaction, after a segment could not be read."""

    def next_read(self, synced: int) -> CompactionRead | None:
        """Return the job that reads the next `SLICE` bytes of the oldest segment, whose messages are then copied.

        :param synced: number of the last batch of records that is on disk.
        :return: None if there is nothing to compact, or if the messages of the last job have not been copied yet or the
            copies are not on disk.
        """
        newest = self._segments.segments[-1].number
        if self._is_reading or newest < self._resumes_at or self._copied_batch > synced:
            return None
        if self._segment is not None and self._segment.live == 0:
            # Nothing is left to copy, and the file may be deleted already.
            self._segment = self._reader = None
        if self._reader is None:
            self._segment = self._find_wasteful(synced)
            if self._segment is None:
                return None
            number = self._segment.number
            path, seed = segment_path(self._folder, number), segment_seed(self._identity, number)
            self._reader = SegmentReader(self._files, path, number, seed, self._block)
            self._reported = 0
        self._is_reading = True
        return CompactionRead(self._reader, SLICE)

    def copy(self, part: CompactionRead, log: Log, queues: Mapping[int, QueueLog]) -> None:
        """Append copies of those messages that are still in their queue to the end of the log.

        :param part: the finished job, which has read them from the oldest segment.
        :param queues: the queues of the log, by incarnation (the number that names a queue in its records).
        """
        segment, reader = self._segment, self._reader
        assert segment is not None
        assert reader is not None
        self._is_reading = False
        if part.error:
            logger.error("event=log.read_failed segment=%d reason=%r", segment.number, part.error)
            # Without a descriptor it is read again, from its start, when the log could open another segment.
            newest = self._segments.segments[-1].number
            self._resumes_at = int(newest) + 1 if part.is_shortage else NEVER
            self._segment = self._reader = None
            return
        copied = False
        before = log.unwritten_bytes
        for record in part.records:
            for item in expand_record(record):
                copied = _copy_record(item, segment, log, queues) or copied
        self.copied_bytes += int(log.unwritten_bytes - before)
        for damage in reader.damage[self._reported :]:
            logger.error("event=log.damage_found detail=%r", damage.text)
        self._reported = len(reader.damage)
        segment.is_damaged = segment.is_damaged or self._reported > 0
        if part.finished:
            _abandon_unread(segment, queues)
            self._segment = self._reader = None
        if copied:
            self._copied_batch = log.batch
            segment.batch = log.batch

    def _find_wasteful(self, synced: int) -> Segment | None:
        """Return the oldest segment if the log is much larger than the messages in queues, or has too many segments.

        Much larger means that these messages take less than half of its bytes. Even if all of them are copied, more
        bytes become free than are written.

        :param synced: number of the last batch of records that is on disk.
        :return: None if compaction is not needed, or if the segment holds no message of a queue or is not yet on disk.
        """
        segments = self._segments.segments
        if len(segments) < 2:
            return None
        live = self._segments.live_bytes()
        # Each start of the process begins a segment: many segments that hold little are as wasteful.
        allowed = MIN_SEGMENTS + 4 * live // self._segments.segment_size
        if self._segments.size() <= 2 * live + self._slack and len(segments) <= allowed:
            return None
        oldest = segments[0]
        return oldest if oldest.live and oldest.batch <= synced else None


def _copy_record(record: Record, segment: Segment, log: Log, queues: Mapping[int, QueueLog]) -> bool:
    """Append copies of a record's live messages (those still in their queue) to the log. Return True if there were any.

    :param segment: the segment that the record was read from. A message is copied only if it is live there.
    :param queues: the queues of the log, by incarnation (the number that names a queue in its records).
    """
    if record.kind == MESSAGE:
        queue = queues.get(record.incarnation)
        if queue is None or not queue.live.take(segment, record.sequence):
            return False
        position = log.append_message(queue, record.sequence, record.payload, b"")
        log.record_copy(queue, record.sequence, position, record.payload)
        log.rewrite_delivery_count(queue, record.sequence)
        return True
    if record.kind == SPILL:
        queue = queues.get(record.incarnation)
        if queue is None or not queue.live.take(segment, record.sequence):
            return False
        position = log.spill(queue, record.sequence, record.payload, b"")
        log.record_copy(queue, record.sequence, position, record.payload)
        queue.spilled_copies.add(record.sequence)
        return True
    if record.kind == FAN_OUT:
        table, content = decode_fan_out(record.payload)
        targets = []
        for incarnation, sequence in zip(table[::2], table[1::2], strict=True):
            queue = queues.get(incarnation)
            if queue is not None and queue.live.take(segment, sequence):
                targets.append((queue, sequence))
        if targets:
            position = (
                log.fan_out(targets, content, b"")
                if len(targets) > 1
                else log.append_message(*targets[0], content, b"")
            )
            for queue, sequence in targets:
                log.record_copy(queue, sequence, position, content)
                log.rewrite_delivery_count(queue, sequence)
        return bool(targets)
    # Acknowledgements and delivery counts belong to messages in this segment or in older ones, which are deleted.
    return False


def _abandon_unread(segment: Segment, queues: Mapping[int, QueueLog]) -> None:
    """Treat messages as lost that are still in their queue and could not be read from a segment.

    Log their number, and no longer count them as live, so that the segment can be deleted.

    :param queues: the queues of the log, by incarnation (the number that names a queue in its records).
    """
    for queue in queues.values():
        for extent in [extent for extent in queue.live.extents if extent.segment is segment]:
            lost = extent.sequences()
            logger.error(
                "event=log.messages_lost segment=%d queue=%d messages=%d first=%d last=%d",
                segment.number,
                queue.incarnation,
                len(lost),
                lost[0],
                lost[-1],
            )
            for sequence in lost:
                queue.live.take(segment, sequence)


__all__ = ["Compactor"]
