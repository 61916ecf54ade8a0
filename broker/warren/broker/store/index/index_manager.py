"""Which segments of the log get an index, and when."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Optional

from mypy_extensions import i64

from warren.broker.store.index.index_builder import Indexer, IndexJob
from warren.broker.store.log.live_segments import Segments
from warren.broker.store.log.queue_log import QueueLog
from warren.broker.store.read.message_fetch import PLACE

logger = logging.getLogger(__name__)


class Indexes:
    """Has the oldest closed segment indexed that has no index; one at a time."""

    def __init__(self, segments: Segments, indexer: Indexer) -> None:
        self.soon = False
        """Somebody waits for the index of each segment that is closed."""
        self._segments = segments
        self._indexer = indexer
        self._busy = False
        self._hopeless: set[int] = set()

    def next_job(self, synced: i64) -> Optional[IndexJob]:  # noqa: UP045
        """The next slice of work, if there is any. The newest closed segment is left alone if nobody waits: what it holds
        may be consumed soon."""
        if self._busy:
            return None
        spare = 1 if self.soon else 2
        for segment in self._segments.held[:-spare]:
            index = segment.index
            if segment.number in self._hopeless or (index is not None and index.entries is None):
                continue
            if segment.live and segment.batch <= synced:
                self._busy = True
                return IndexJob(self._indexer, int(segment.number), index)
        return None

    def take(self, job: IndexJob, queues: Mapping[int, QueueLog]) -> None:
        """The work on a segment has ended: with its index, if it could be made; in memory, if it could not be written."""
        self._busy = False
        if job.error:
            logger.error("event=index_failed detail=%r", job.error)
            self._hopeless.add(job.number)
        for place in job.damage:
            logger.error("event=log_damaged detail=%r", place.text)
        if job.index is None:
            return
        for segment in self._segments.held:
            if segment.number == job.number:
                segment.index = job.index
                forget_moves(segment.number, queues)

    def until(self) -> i64:
        """The place before which every segment that holds something live has an index."""
        held = self._segments.held
        for segment in held:
            if segment.index is None and (segment.live or segment is held[-1]):
                return segment.number << PLACE
        return held[-1].number << PLACE


def forget_moves(number: i64, queues: Mapping[int, QueueLog]) -> None:
    """The copies in a segment need not be known one by one any more."""
    for queue in queues.values():
        if queue.moved:
            queue.moved = {
                sequence: place for sequence, place in queue.moved.items() if place >> PLACE != number
            }
            queue.moved_transient &= queue.moved.keys()


__all__ = ["Indexes", "forget_moves"]
