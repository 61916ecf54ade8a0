"""Copies the live messages of the oldest segment forward, a slice at a time, so that the segment can go."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from .reader import SegmentReader
from .record import FAN_OUT, MESSAGE, Record, entries, fan_out_targets
from .segments import Segment
from .writer import Slice

if TYPE_CHECKING:
    from .log import Log, QueueLog

SLICE: Final = 256 * 1024
"""Bytes that are read at a time: confirms wait no longer than that takes."""


class Compaction:
    """The compaction of one segment.

    A copy keeps its identity (queue and sequence), so a crash between the copy and the removal of the
    original leaves two records of one message, of which recovery takes the newer. It is made on the loop,
    while the message is live and nothing that says otherwise has been written: the record that ends a message
    always follows its copies.
    """

    def __init__(self, segment: Segment, reader: SegmentReader) -> None:
        self._segment = segment
        self._reader = reader
        self._reading = False
        self._wait_for = 0
        self._damage = 0

    def may_read(self, synced: int) -> bool:
        """Whether the next slice is due: the copies of the one before are on the disk."""
        return not self._reading and self._wait_for <= synced

    def slice(self) -> Slice:
        """The job that reads the next slice."""
        self._reading = True
        return Slice(self._reader, SLICE)

    def copy(self, part: Slice, log: Log, queues: Mapping[int, QueueLog]) -> list[str]:
        """Append what is live in the slice; returns a line for each damage that was met."""
        self._reading = False
        copied = False
        for record in part.records:
            for item in entries(record):
                copied = self._copy(item, log, queues) or copied
        report = [damage.text for damage in self._reader.damage[self._damage :]]
        self._damage = len(self._reader.damage)
        if part.finished:
            report += self._give_up(queues)
        if copied:
            self._wait_for = log.batch
            self._segment.batch = log.batch
        return report

    def _copy(self, record: Record, log: Log, queues: Mapping[int, QueueLog]) -> bool:
        if record.kind == MESSAGE:
            queue = queues.get(record.incarnation)
            if queue is None or not queue.live.take(self._segment, record.sequence):
                return False
            log.message(queue, record.sequence, record.payload, b"")
            log.mark_again(queue, record.sequence)
            return True
        if record.kind == FAN_OUT:
            table, content = fan_out_targets(record.payload)
            targets = []
            for incarnation, sequence in zip(table[::2], table[1::2], strict=True):
                queue = queues.get(incarnation)
                if queue is not None and queue.live.take(self._segment, sequence):
                    targets.append((queue, sequence))
            if len(targets) == 1:
                log.message(*targets[0], content, b"")
            elif targets:
                log.fan_out(targets, content, b"")
            for queue, sequence in targets:
                log.mark_again(queue, sequence)
            return bool(targets)
        # Acknowledgements and counts speak of messages in this segment or in older ones, which are gone.
        return False

    def _give_up(self, queues: Mapping[int, QueueLog]) -> list[str]:
        """Messages that should have been in the segment and could not be read: on the disk they are lost."""
        report = []
        for queue in queues.values():
            for extent in [extent for extent in queue.live.extents if extent.segment is self._segment]:
                lost = extent.sequences()
                report.append(
                    f"segment {self._segment.number}: {len(lost)} messages of queue {queue.incarnation} "
                    f"are lost, between {lost[0]} and {lost[-1]}"
                )
                for sequence in lost:
                    queue.live.take(self._segment, sequence)
        return report


__all__ = ["Compaction"]
