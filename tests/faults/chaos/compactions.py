"""Frequent compactions of a broker's log, and their number, for rounds that must contain many."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from unittest import mock

from warren.broker.store.log.compaction import Compactor
from warren.broker.store.log.log import Log
from warren.broker.store.log.queue_log import QueueLog
from warren.broker.store.log.segment import Segment
from warren.broker.store.log.writer_jobs import CompactionRead

FREQUENT_SEGMENTS = 3
"""New segments after which the oldest is compacted, if compactions are frequent."""


class Compactions:
    """Compactions of the log of one broker: segments that were read to the end, with a message copied from them.

    :param frequent: compact the oldest segment after every few new ones, however much of the log is live.
    """

    def __init__(self, *, frequent: bool = False) -> None:
        self.frequent = frequent
        self.count = 0
        self.running = False
        """A segment is being read, or its copies are not on the disk yet."""

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count the compactions of the logs that are opened within the context."""
        counts = self

        class CountedCompactor(Compactor):
            has_copied = False
            next_at = 0

            def _find_wasteful(self, synced: int) -> Segment | None:
                # Whatever part of the log is live: under this load that changes from round to round.
                segments = self._segments.segments
                newest = segments[-1].number
                if not counts.frequent or newest < self.next_at:
                    return super()._find_wasteful(synced)
                if not segments[0].live or segments[0].batch > synced:
                    return None
                self.next_at = newest + FREQUENT_SEGMENTS
                return segments[0]

            def next_read(self, synced: int) -> CompactionRead | None:
                part = super().next_read(synced)
                if part is not None:
                    counts.running = True
                elif not self._is_reading and self._copied_batch <= synced:
                    counts.running = False
                return part

            def copy(self, part: CompactionRead, log: Log, queues: Mapping[int, QueueLog]) -> None:
                before = self._copied_batch
                super().copy(part, log, queues)
                # A batch never holds the copies of two reads.
                self.has_copied |= self._copied_batch != before
                if part.finished:
                    counts.count += self.has_copied
                    self.has_copied = False

        with mock.patch("warren.broker.store.log.log.Compactor", CountedCompactor):
            yield
