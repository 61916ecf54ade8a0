"""Deletion of segments that hold no live message (one that is still in its queue).

An acknowledgement or a delivery count is in the same segment as its message or in a later one. So a segment without
live messages may be deleted only when it is the oldest. If a later segment were deleted first, messages in older ones
whose acknowledgements it held would come back after a crash.
"""

from __future__ import annotations

from collections.abc import Mapping

from mypy_extensions import i64

from warren.broker.store.index.index_scheduler import forget_copies
from warren.broker.store.log.queue_log import QueueLog
from warren.broker.store.log.segment import Segment, SegmentList
from warren.broker.store.log.writer_jobs import DeleteSegments, JobQueue


class SegmentDeletion:
    """Deletion of the oldest segments that hold no live message, once no crash can bring one of their messages back."""

    def __init__(self, segments: SegmentList, jobs: JobQueue) -> None:
        self._segments = segments
        self._jobs = jobs

    def run(self, synced: i64, committed: i64, queues: Mapping[int, QueueLog]) -> None:
        """Have the writer thread delete the oldest segments, up to the first that is still needed.

        :param synced: number of the last batch of records that is on disk.
        :param committed: number of the last change of the definitions database that is on disk.
        :param queues: all queues of the log, by the number that names them there.
        """
        removed = self._take_deletable(synced, committed)
        if not removed:
            return
        numbers = [int(segment.number) for segment in removed]
        damaged = {int(segment.number) for segment in removed if segment.is_damaged}
        self._jobs.put(DeleteSegments(numbers, damaged))
        for segment in removed:
            if segment.index is None:
                forget_copies(segment.number, queues)

    def _take_deletable(self, synced: i64, committed: i64) -> list[Segment]:
        """Remove the oldest segments from the list, up to the first that is needed, and return them.

        A segment is needed while it has live messages, or while the acknowledgements or queue deletions that ended its
        messages are not on disk. The last segment, which is written to, always stays.
        """
        segments = self._segments.segments
        count = 0
        for segment in segments[:-1]:
            if segment.live or segment.batch > synced or segment.change > committed:
                break
            count += 1
        removed = segments[:count]
        if count:
            del segments[:count]
        return removed


__all__ = ["SegmentDeletion"]
