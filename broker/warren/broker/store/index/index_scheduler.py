"""Scheduling of index jobs: which closed segment is indexed next, and the result of its job."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Optional

from mypy_extensions import i64

from warren.broker.store.index.index_job import IndexJob
from warren.broker.store.index.index_store import IndexStore
from warren.broker.store.log.queue_log import QueueLog
from warren.broker.store.log.record_format import POSITION_SHIFT
from warren.broker.store.log.segment import NEVER, SegmentList

logger = logging.getLogger(__name__)


class IndexScheduler:
    """Scheduler of index jobs: the oldest closed segment without an index comes next, one segment at a time."""

    def __init__(self, segments: SegmentList, store: IndexStore) -> None:
        self.urgent = False
        """True if each segment is indexed as soon as it is closed, because a queue waits to page its messages out."""
        self._segments = segments
        self._store = store
        self._is_busy = False
        self._failed: dict[int, int] = {}
        """Segments that could not be indexed, each with the number of the segment at whose beginning it is tried again."""

    def next_job(self, synced: i64) -> Optional[IndexJob]:  # noqa: UP045
        """Return the job for the oldest closed segment that has no index file and holds messages still in a queue.

        Return None if there is none, or if a job is running.

        The newest closed segment is left out, unless `urgent` is set: its messages may be consumed so soon that it
        can be deleted without ever being indexed.

        :param synced: number of the last batch of records that is on disk. A segment with later ones is not indexed
            yet.
        """
        if self._is_busy:
            return None
        spare = 1 if self.urgent else 2
        newest = self._segments.segments[-1].number
        for segment in self._segments.segments[:-spare]:
            index = segment.index
            if newest < self._failed.get(segment.number, 0) or (index is not None and index.entries is None):
                continue
            if segment.live and segment.batch <= synced:
                self._is_busy = True
                return IndexJob(self._store, int(segment.number), index)
        return None

    def finish(self, job: IndexJob, queues: Mapping[int, QueueLog]) -> None:
        """Keep the index that a finished job has built. Log a failure, or damage that the job has found.

        An index that was built but could not be written to its file stays in memory. A segment that could not be indexed
        because the disk was full, or no file descriptor was left, is tried again when the next segment was begun. The log
        positions that the queues keep for copies in the segment are forgotten, because the index has them.

        :param queues: the queues of the log, by incarnation (the number that names a queue in its records).
        """
        self._is_busy = False
        if job.error:
            logger.error("event=index.build_failed segment=%d reason=%r", job.number, job.error)
            # Without room or a descriptor it is tried again when the log could open another segment.
            newest = self._segments.segments[-1].number
            self._failed[job.number] = int(newest) + 1 if job.is_shortage else NEVER
        for place in job.damage:
            logger.error("event=log.damage_found detail=%r", place.text)
        if job.index is None:
            return
        for segment in self._segments.segments:
            if segment.number == job.number:
                segment.index = job.index
                segment.is_damaged = segment.is_damaged or len(job.damage) > 0
                forget_copies(segment.number, queues)

    def indexed_up_to(self) -> i64:
        """Return the log position before which every segment that holds messages still in a queue has an index.

        A log position is a segment and an offset, as one number.
        """
        segments = self._segments.segments
        for segment in segments:
            if segment.index is None and (segment.live or segment is segments[-1]):
                return segment.number << POSITION_SHIFT
        return segments[-1].number << POSITION_SHIFT


def forget_copies(number: i64, queues: Mapping[int, QueueLog]) -> None:
    """Forget the log positions that the queues keep for the messages that compaction copied into a segment.

    The queues need them only until the segment has an index, by which the copies are found. Call this when it has one,
    or when the segment is deleted.

    :param number: number of the segment.
    """
    for queue in queues.values():
        if queue.copies:
            queue.copies = {
                sequence: position
                for sequence, position in queue.copies.items()
                if position >> POSITION_SHIFT != number
            }
            queue.spilled_copies &= queue.copies.keys()


__all__ = ["IndexScheduler", "forget_copies"]
