"""Copies the live messages of the oldest segment forward, a slice at a time, so that the segment can go."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from warren.broker.store.log.live_segments import Segment, Segments
from warren.broker.store.log.record_format import (
    FAN_OUT,
    MESSAGE,
    SPILL,
    Record,
    entries,
    fan_out_targets,
    seed_of,
)
from warren.broker.store.log.recovery import Recovery
from warren.broker.store.log.segment_reader import SegmentReader, segment_path
from warren.broker.store.log.writer_thread import Slice

if TYPE_CHECKING:
    from warren.broker.store.log.log import Log, QueueLog

logger = logging.getLogger(__name__)

SLICE: Final = 256 * 1024
"""Bytes that are read at a time: confirms wait no longer than that takes."""


class Compactor:
    """Compacts one segment at a time, the oldest one, while that pays.

    A copy keeps its identity (queue and sequence), so a crash between the copy and the removal of the
    original leaves two records of one message, of which recovery takes the newer. It is made on the loop,
    while the message is live and nothing that says otherwise has been written: the record that ends a message
    always follows its copies.
    """

    def __init__(self, segments: Segments, recovery: Recovery) -> None:
        self._segments = segments
        self._folder = recovery.folder
        self._files = recovery.files
        self._identity = recovery.identity
        self._block = recovery.block
        self._segment: Segment | None = None
        self._reader: SegmentReader | None = None
        self._reported = 0
        self._reading = False
        self._wait_for = 0
        self._unreadable = False

    def next_slice(self, synced: int) -> Slice | None:
        """The job that reads the next slice, if one is due: the copies of the one before are on the disk."""
        if self._reading or self._unreadable or self._wait_for > synced:
            return None
        if self._segment is not None and self._segment.live == 0:
            # Nothing is left to copy, and the file may be gone.
            self._segment = self._reader = None
        if self._reader is None:
            self._segment = self._segments.wasteful(synced)
            if self._segment is None:
                return None
            number = self._segment.number
            path, seed = segment_path(self._folder, number), seed_of(self._identity, number)
            self._reader = SegmentReader(self._files, path, number, seed, self._block)
            self._reported = 0
        self._reading = True
        return Slice(self._reader, SLICE)

    def copy(self, part: Slice, log: Log, queues: Mapping[int, QueueLog]) -> None:
        """Append what is live in a slice that was read."""
        segment, reader = self._segment, self._reader
        assert segment is not None
        assert reader is not None
        self._reading = False
        if part.error:
            logger.error("event=log_unreadable detail=%r", part.error)
            self._unreadable = True
            return
        copied = False
        for record in part.records:
            for item in entries(record):
                copied = _copy(item, segment, log, queues) or copied
        for damage in reader.damage[self._reported :]:
            logger.error("event=log_damaged detail=%r", damage.text)
        self._reported = len(reader.damage)
        if part.finished:
            _give_up(segment, queues)
            self._segment = self._reader = None
        if copied:
            self._wait_for = log.batch
            segment.batch = log.batch


def _copy(record: Record, segment: Segment, log: Log, queues: Mapping[int, QueueLog]) -> bool:
    if record.kind == MESSAGE:
        queue = queues.get(record.incarnation)
        if queue is None or not queue.live.take(segment, record.sequence):
            return False
        log.copied(
            queue, record.sequence, log.message(queue, record.sequence, record.payload, b""), record.payload
        )
        log.mark_again(queue, record.sequence)
        return True
    if record.kind == SPILL:
        queue = queues.get(record.incarnation)
        if queue is None or not queue.live.take(segment, record.sequence):
            return False
        place = log.spill(queue, record.sequence, record.payload, b"")
        log.copied(queue, record.sequence, place, record.payload)
        queue.moved_transient.add(record.sequence)
        return True
    if record.kind == FAN_OUT:
        table, content = fan_out_targets(record.payload)
        targets = []
        for incarnation, sequence in zip(table[::2], table[1::2], strict=True):
            queue = queues.get(incarnation)
            if queue is not None and queue.live.take(segment, sequence):
                targets.append((queue, sequence))
        if targets:
            place = (
                log.fan_out(targets, content, b"")
                if len(targets) > 1
                else log.message(*targets[0], content, b"")
            )
            for queue, sequence in targets:
                log.copied(queue, sequence, place, content)
                log.mark_again(queue, sequence)
        return bool(targets)
    # Acknowledgements and counts speak of messages in this segment or in older ones, which are gone.
    return False


def _give_up(segment: Segment, queues: Mapping[int, QueueLog]) -> None:
    """Messages that should have been in the segment and could not be read: on the disk they are lost."""
    for queue in queues.values():
        for extent in [extent for extent in queue.live.extents if extent.segment is segment]:
            lost = extent.sequences()
            logger.error(
                "event=log_lost segment=%d queue=%d messages=%d first=%d last=%d",
                segment.number,
                queue.incarnation,
                len(lost),
                lost[0],
                lost[-1],
            )
            for sequence in lost:
                queue.live.take(segment, sequence)


__all__ = ["Compactor"]
